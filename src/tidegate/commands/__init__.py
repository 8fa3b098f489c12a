"""Slash commands, the same on the page and in the terminal.

`build` returns the registry with all commands; a new package adds its commands to `COMMANDS`.
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
"""All but /help, which the registry makes itself."""


def build(service: Sessions) -> Commands:
    return Commands(service, COMMANDS)
