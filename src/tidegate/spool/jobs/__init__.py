"""Jobs that process untrusted data (images, audio, web pages) in short-lived child processes."""
