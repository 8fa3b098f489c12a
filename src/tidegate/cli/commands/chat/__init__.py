"""`tidegate chat`: line input, output, and agents' questions in the terminal."""

from tidegate.cli.commands.chat.chat import command

__all__ = ["command"]
