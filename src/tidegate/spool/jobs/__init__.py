"""Work on foreign bytes (pictures, sounds, patterns), done in short-lived child processes."""
