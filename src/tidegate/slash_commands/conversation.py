"""Commands for the conversation itself: new, stop, retry, undo, reload, title, resume, sessions."""

import time

from tidegate.errors import Refused
from tidegate.sessions import SessionView
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand

LISTED = 20
"""Number of conversations that `/sessions` lists."""

REBUILDS = "The model reads the whole conversation again (its cached prefix is rebuilt)."

KEPT = " Useful notes from this conversation will be saved; /memory shows them."


async def new(context: CommandContext, words: str) -> CommandReply:
    if words:
        raise Refused(
            "/new takes no arguments; use /title to name the conversation once it has begun.", code="bad_argument"
        )
    kept = ""
    if context.session is not None:
        row = await context.service.row(context.session, context.principal)
        if await context.service.end(context.session, context.principal, "new") and context.service.is_extracted(row):
            kept = KEPT
    return CommandReply(text=f"A new conversation begins with your next message.{kept}")


async def stop(context: CommandContext, _: str) -> CommandReply:
    turn = await context.service.stop(context.here(), context.principal)
    return CommandReply(text="Stopped." if turn else "Nothing is running.", session=context.session)


async def retry(context: CommandContext, _: str) -> CommandReply:
    accepted = await context.service.operations.retry(context.here(), context.principal)
    return CommandReply(text=f"Trying again. {REBUILDS}", session=context.session, turn=accepted.turn)


async def undo(context: CommandContext, _: str) -> CommandReply:
    await context.service.operations.undo(context.here(), context.principal)
    return CommandReply(text=f"The last turn was undone. {REBUILDS}", session=context.session)


async def reload(context: CommandContext, _: str) -> CommandReply:
    changed = await context.service.operations.reload(context.here(), context.principal)
    text = f"Prompt and tools were updated. {REBUILDS}" if changed else "Prompt and tools had not changed."
    return CommandReply(text=text, session=context.session)


async def title(context: CommandContext, words: str) -> CommandReply:
    if not words:
        raise Refused("The title is missing: use /title WORDS, such as /title Holiday plans.", code="missing_argument")
    await context.service.operations.set_title(context.here(), context.principal, words)
    return CommandReply(text="The title was changed.", session=context.session)


async def resume(context: CommandContext, which: str) -> CommandReply:
    if not which:
        raise Refused(
            "The conversation is missing: use /resume with a number from /sessions or an id.", code="missing_argument"
        )
    session, is_new = await context.service.operations.resume(await _find(context, which), context.principal)
    view = await context.service.session(session, context.principal)
    name = view.title or view.name or view.id
    text = f"{name} had ended; a new conversation begins with its transcript." if is_new else f"You are back in: {name}"
    return CommandReply(text=text, session=session)


async def sessions(context: CommandContext, words: str) -> CommandReply:
    found = await _recent(context, words or None)
    if not found:
        text = f"No conversation mentions {words}." if words else "There are no conversations yet."
        return CommandReply(text=text, session=context.session)
    if words:
        # /resume counts in the unfiltered list, so numbers here would be misleading.
        lines = []
        for view in found:
            lines.append(f"{view.id}  {_line(view, view.title or view.name or '')}")
            if view.excerpt:
                lines.append(f"    {view.excerpt}")
    else:
        named = ((view, view.title or view.name or view.id) for view in found)
        lines = [f"{number:3}. {_line(*each)}" for number, each in enumerate(named, 1)]
    return CommandReply(text="\n".join(lines), session=context.session)


async def _recent(context: CommandContext, query: str | None = None) -> list[SessionView]:
    return await context.service.sessions(context.principal, limit=LISTED, ended=None, query=query)


async def _find(context: CommandContext, which: str) -> str:
    if not which.isdecimal() or len(which) > len(str(LISTED)):
        return which
    found = await _recent(context)
    number = int(which)
    if not 1 <= number <= len(found):
        raise Refused(f"There is no number {number}: /sessions lists {len(found)} conversations.", code="not_found")
    return found[number - 1].id


def _line(view: SessionView, name: str) -> str:
    state = "running" if view.running else "ended" if view.ended is not None else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.active))
    return "  ".join(part for part in (when, name, state) if part)


COMMANDS = (
    SlashCommand(
        name="new",
        aliases=("reset",),
        help="End this conversation and begin a new one.",
        handler=new,
        mid_turn="stops the running turn first",
    ),
    SlashCommand(name="stop", help="Stop the running turn. The text shown so far is kept.", handler=stop),
    SlashCommand(
        name="retry",
        help="Retry the last message.",
        handler=retry,
        cost=REBUILDS,
        mid_turn="refused until the turn has ended",
    ),
    SlashCommand(
        name="undo",
        help="Remove the last turn from the model's view.",
        handler=undo,
        cost=REBUILDS,
        mid_turn="refused until the turn has ended",
    ),
    SlashCommand(
        name="reload",
        help="Apply the agent's current prompt and tools to this conversation.",
        handler=reload,
        cost=REBUILDS,
        mid_turn="refused until the turn has ended",
    ),
    SlashCommand(name="title", arguments="WORDS", help="Name this conversation.", handler=title),
    SlashCommand(
        name="sessions",
        arguments="[WORDS]",
        help="List recent conversations by number, or those that mention WORDS by id.",
        handler=sessions,
    ),
    SlashCommand(
        name="resume",
        arguments="NUMBER|ID",
        help="Return to a conversation; an ended one continues in a new one with its transcript.",
        handler=resume,
    ),
)
