"""Slash commands. They are the same on the chat page and in the terminal.

`build` returns the registry of all commands. New commands are added to `COMMANDS`.
"""

from tidegate.sessions import Sessions
from tidegate.slash_commands import approvals, context, conversation, memory, servers, settings, skills
from tidegate.slash_commands.dispatch import CommandContext, CommandInfo, CommandReply, Commands, SlashCommand

__all__ = ["COMMANDS", "CommandContext", "CommandInfo", "CommandReply", "Commands", "SlashCommand", "build"]

COMMANDS: tuple[SlashCommand, ...] = (
    *conversation.COMMANDS,
    *approvals.COMMANDS,
    *settings.COMMANDS,
    *context.COMMANDS,
    *skills.COMMANDS,
    *memory.COMMANDS,
    *servers.COMMANDS,
)
"""All commands except /help, which is part of the registry."""


def build(service: Sessions) -> Commands:
    return Commands(service, COMMANDS)
