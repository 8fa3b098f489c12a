"""Jobs that process untrusted data (pictures, audio, search patterns) in short-lived child processes."""
