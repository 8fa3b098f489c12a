"""Jobs that process untrusted data (pictures, audio, web pages) in short-lived child processes."""
