"""The toolset `terminal`: commands in the session's own shell (`terminal`), and long-running ones (`process`)."""

from tidegate.tools.builtin.terminal.commands import terminal
from tidegate.tools.builtin.terminal.processes import process

__all__ = ["process", "terminal"]
