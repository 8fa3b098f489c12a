"""The command `tidegate`: one file per command, loaded only when it is the one that runs.

Guarantee: whatever goes wrong on purpose is one sentence on standard error that says what to do, with exit code 1 (2
for wrong usage); nothing heavy is imported to answer a light question.
"""

from tidegate.cli.root import main

__all__ = ["main"]
