"""Commands: what a person may say with a slash, the same on the page and in the terminal.

`build` gives the registry with everything in it; a later room adds its own commands there.
"""

from tidegate.commands import choices, conversation
from tidegate.commands.registry import Command, CommandInfo, Commands, Context, Reply
from tidegate.sessions import Sessions

__all__ = ["Command", "CommandInfo", "Commands", "Context", "Reply", "build"]


def build(door: Sessions) -> Commands:
    return Commands(door, (*conversation.COMMANDS, *choices.COMMANDS))
