"""Commands for the context window: context, compact."""

import time

from tidegate.errors import Refused
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand
from tidegate.turns import WindowUsage

BAR = 24
"""The width, in characters, of the bar for the window."""

REBUILDS = "The model reads the whole conversation again (its cached prefix is rebuilt)."


async def context(context: CommandContext, words: str) -> CommandReply:
    _refuse_arguments("context", words)
    usage = await context.service.window_usage(context.here(), context.principal)
    return CommandReply(text=format_usage(usage), session=context.session)


async def compact(context: CommandContext, words: str) -> CommandReply:
    _refuse_arguments("compact", words)
    await context.service.operations.ask_to_compact(context.here(), context.principal)
    text = f"Older messages will be summarised with your next message; nothing is deleted. {REBUILDS}"
    return CommandReply(text=text, session=context.session)


def _refuse_arguments(command: str, words: str) -> None:
    if words:
        raise Refused(f"/{command} takes no arguments.", code="bad_argument")


def format_usage(usage: WindowUsage) -> str:
    """Formats the window's usage as lines of text."""
    about = "" if usage.counted else "about "
    lines = [
        f"{about}{usage.tokens:,} of {usage.window:,} tokens in use, {_share(usage.tokens, usage)} of "
        f"{usage.model}'s window",
        _bar(usage.tokens, usage),
    ]
    width = max((len(share.name) for share in usage.parts), default=0)
    for share in usage.parts:
        many = f"  ({share.count:,})" if share.count > 1 else ""
        lines.append(f"{share.name:{width}}  {share.tokens:>9,}  {_share(share.tokens, usage):>5}{many}")
    if usage.summaries:
        by = "a summary or list" if usage.summaries == 1 else f"{usage.summaries} summaries or lists"
        lines.append(f"Messages 1 to {usage.summarised:,} are replaced by {by} of them.")
    lines.append(
        f"Above {usage.soft:,} tokens a summary is prepared; above {usage.hard:,} it replaces older messages. "
        "/compact does this when you send your next message."
    )
    if usage.resting:
        until = time.strftime("%H:%M", time.localtime(usage.rests_until or 0))
        lines.append(f"Automatic summaries are suspended until {until}: {usage.resting.rstrip('.')}.")
    return "\n".join(lines)


def _share(tokens: int, usage: WindowUsage) -> str:
    return f"{tokens / usage.window:.1%}"


def _bar(tokens: int, usage: WindowUsage) -> str:
    """Draws a bar that shows how full the window is, with a mark at each summary threshold."""
    full = min(BAR, round(BAR * tokens / usage.window))
    cells = ["█"] * full + ["·"] * (BAR - full)
    for mark in (usage.soft, usage.hard):
        place = min(BAR - 1, int(BAR * mark / usage.window))
        cells[place] = "|"
    return "[" + "".join(cells) + "]"


COMMANDS = (
    SlashCommand(name="context", help="Show what fills the model's context window, by part.", handler=context),
    SlashCommand(
        name="compact",
        help="Replace older messages with summaries for the model; the transcript stays complete.",
        handler=compact,
        cost=REBUILDS,
        mid_turn="applies with the next turn",
    ),
)
