"""The command `tidegate`. Each command's module, in `slash_commands/`, is imported only when that command runs.

An expected failure prints one sentence that says what to do to standard error, and exits with code 1 (2 for usage
errors). A command imports only what it needs.
"""

from tidegate.cli.root import main

__all__ = ["main"]
