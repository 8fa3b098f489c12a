"""Jobs that process untrusted data (pictures, sounds, search patterns) in short-lived child processes."""
