"""Jobs on untrusted bytes (pictures, sounds, patterns), run in short-lived child processes."""
