"""The commands, one module or package each. Its `command` is what runs."""
