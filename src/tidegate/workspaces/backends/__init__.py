"""Where commands run: the sandbox backends `bubblewrap`, `local` and `ssh`."""
