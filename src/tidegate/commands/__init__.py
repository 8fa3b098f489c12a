"""Commands: what a person may say with a slash, the same on the page and in the terminal.

`build` gives the registry with everything in it; a later room adds its own commands to `COMMANDS`.
"""

from tidegate.commands import approvals, context, conversation, memory, settings, skills
from tidegate.commands.registry import CommandContext, CommandInfo, CommandReply, Commands, SlashCommand
from tidegate.sessions import Sessions

__all__ = ["COMMANDS", "CommandContext", "CommandInfo", "CommandReply", "Commands", "SlashCommand", "build"]

COMMANDS: tuple[SlashCommand, ...] = (
    *conversation.COMMANDS,
    *approvals.COMMANDS,
    *settings.COMMANDS,
    *context.COMMANDS,
    *skills.COMMANDS,
    *memory.COMMANDS,
)
"""All but /help, which a registry makes for itself."""


def build(service: Sessions) -> Commands:
    return Commands(service, COMMANDS)
