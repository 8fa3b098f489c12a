"""The command `tidegate`: one module per command, imported only when that command runs.

An expected failure is one sentence on standard error that says what to do, with exit code 1 (2 for wrong usage).
Commands that need little import little.
"""

from tidegate.cli.root import main

__all__ = ["main"]
