"""Commands about the window: context, compact."""

import time

from tidegate.commands.registry import CommandContext, CommandReply, SlashCommand
from tidegate.errors import Refused
from tidegate.turns import WindowUsage

BAR = 24
"""Characters of a bar as long as the window."""

REBUILDS = "The model reads the conversation anew once (its cached prefix is rebuilt)."


async def context(context: CommandContext, words: str) -> CommandReply:
    _check_alone("context", words)
    filling = await context.service.filling(context.here(), context.principal)
    return CommandReply(text=told(filling), session=context.session)


async def compact(context: CommandContext, words: str) -> CommandReply:
    _check_alone("compact", words)
    await context.service.operations.ask_to_compact(context.here(), context.principal)
    text = f"Older messages are summarised with your next message; nothing is deleted. {REBUILDS}"
    return CommandReply(text=text, session=context.session)


def _check_alone(command: str, words: str) -> None:
    if words:
        raise Refused(f"Say /{command} alone.", code="bad_argument")


def told(filling: WindowUsage) -> str:
    """As people read it, in lines."""
    about = "" if filling.counted else "about "
    lines = [
        f"{about}{filling.tokens:,} of {filling.window:,} tokens are in use, {_share(filling.tokens, filling)} of the "
        f"window of {filling.model}",
        _bar(filling.tokens, filling),
    ]
    width = max((len(share.name) for share in filling.parts), default=0)
    for share in filling.parts:
        many = f"  ({share.count:,})" if share.count > 1 else ""
        lines.append(f"{share.name:{width}}  {share.tokens:>9,}  {_share(share.tokens, filling):>5}{many}")
    if filling.summaries:
        by = "a summary or list" if filling.summaries == 1 else f"{filling.summaries} summaries or lists"
        lines.append(f"Messages 1 to {filling.summarised:,} are shown by {by} of them.")
    lines.append(
        f"From {filling.soft:,} tokens on a summary is prepared, above {filling.hard:,} it stands for what is old; "
        "/compact does so with the next message."
    )
    if filling.resting:
        until = time.strftime("%H:%M", time.localtime(filling.rests_until or 0))
        lines.append(f"By itself no summary is asked for until {until}: {filling.resting.rstrip('.')}.")
    return "\n".join(lines)


def _share(tokens: int, filling: WindowUsage) -> str:
    return f"{tokens / filling.window:.1%}"


def _bar(tokens: int, filling: WindowUsage) -> str:
    """How full it is, with the marks in it."""
    full = min(BAR, round(BAR * tokens / filling.window))
    cells = ["█"] * full + ["·"] * (BAR - full)
    for mark in (filling.soft, filling.hard):
        place = min(BAR - 1, int(BAR * mark / filling.window))
        cells[place] = "|"
    return "[" + "".join(cells) + "]"


COMMANDS = (
    SlashCommand(name="context", help="What fills the model's window, by part.", handler=context),
    SlashCommand(
        name="compact",
        help="Have older messages summarised for the model; the transcript stays whole.",
        handler=compact,
        cost=REBUILDS,
        mid_turn="applies with the next turn",
    ),
)
