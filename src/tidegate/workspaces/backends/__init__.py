"""Sandbox backends that run commands: `bubblewrap`, `local` and `ssh`."""
