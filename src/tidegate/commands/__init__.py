"""Slash commands. They are the same on the chat page and in the terminal.

`build` returns the registry of all commands. New commands are added to `COMMANDS`.
"""

from tidegate.commands import approvals, context, conversation, memory, settings, skills
from tidegate.commands.dispatch import CommandContext, CommandInfo, CommandReply, Commands, SlashCommand
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
"""All commands except /help, which is part of the registry."""


def build(service: Sessions) -> Commands:
    return Commands(service, COMMANDS)
