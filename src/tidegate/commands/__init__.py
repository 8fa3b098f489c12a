"""Commands: what a person may say with a slash, the same on the page and in the terminal.

`build` gives the registry with everything in it; a later room adds its own commands to `COMMANDS`.
"""

from tidegate.commands import approvals, context, conversation, memory, settings, skills
from tidegate.commands.registry import Command, CommandInfo, Commands, Context, Reply
from tidegate.sessions import Sessions

__all__ = ["COMMANDS", "Command", "CommandInfo", "Commands", "Context", "Reply", "build"]

COMMANDS: tuple[Command, ...] = (
    *conversation.COMMANDS,
    *approvals.COMMANDS,
    *settings.COMMANDS,
    *context.COMMANDS,
    *skills.COMMANDS,
    *memory.COMMANDS,
)
"""All but /help, which a registry makes for itself."""


def build(door: Sessions) -> Commands:
    return Commands(door, COMMANDS)
