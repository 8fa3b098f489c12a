"""The commands, with one module or package each, whose `command` is run."""
