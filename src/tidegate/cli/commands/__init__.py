"""The commands, one module or package each. In each of them, `command` is the function that runs."""
