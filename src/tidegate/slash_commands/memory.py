"""The `/memory` command: shows and edits notes."""

from typing import TYPE_CHECKING

from tidegate.errors import NotFound, Refused
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand

if TYPE_CHECKING:
    from tidegate.memory import Memory, NoteSubject

_SOURCES = {
    "person": "written by {}",
    "tool": "noted in a conversation with {}",
    "end": "extracted from a conversation with {}",
}


async def memory(context: CommandContext, words: str) -> CommandReply:
    try:
        return await _memory(context, words)
    except NotFound as error:
        raise _with_hint(error) from None


async def _memory(context: CommandContext, words: str) -> CommandReply:
    service = _service(context)
    verb, _, rest = words.partition(" ")
    if verb.lower() == "agent":
        about_agent, (verb, _, rest) = True, rest.strip().partition(" ")
    else:
        about_agent = False
    verb, rest = verb.lower(), rest.strip()
    if not verb:
        return CommandReply(text=await _format_all(context, service, about_agent), session=context.session)
    subject = await _subject(context, service, about_agent)
    if verb == "add":
        note = await service.put(context.principal, subject, rest)
        return CommandReply(text=f"Saved as note {note.id}. {_WHEN}", session=context.session)
    if verb == "edit":
        number, _, text = rest.partition(" ")
        note = await service.put(context.principal, subject, text.strip(), _number(number))
        return CommandReply(text=f"Note {note.id} was changed. {_WHEN}", session=context.session)
    if verb == "forget":
        note = await service.drop(context.principal, subject, _number(rest))
        return CommandReply(text=f"Forgotten: {note.text}", session=context.session)
    raise Refused(
        "Use /memory, /memory add TEXT, /memory edit NUMBER TEXT or /memory forget NUMBER; start with /memory agent "
        "for notes about the agent's work.",
        code="bad_argument",
    )


_WHEN = "New conversations start with it; running ones receive it with their next message."


async def _format_all(context: CommandContext, service: "Memory", about_agent: bool) -> str:
    subjects = [] if about_agent else [await _subject(context, service, False)]
    agent = await _agent(context)
    if about_agent or (agent is not None and service.serves(agent)):
        subjects.append(await _subject(context, service, True))
    return "\n\n".join([await _format_notes(service, subject) for subject in subjects])


async def _format_notes(service: "Memory", subject: "NoteSubject") -> str:
    book = await service.notebook(subject)
    of = "you" if subject.about == "person" else f"the work of the agent {subject.name}"
    if not book.notes:
        return f"There are no notes about {of}."
    lines = [f"[{note.id}] {note.text}  ({_SOURCES[note.source].format(note.by)})" for note in book.notes]
    return "\n".join((f"About {of} ({book.bytes} of {book.most} bytes):", *lines))


async def _subject(context: CommandContext, service: "Memory", about_agent: bool) -> "NoteSubject":
    if not about_agent:
        return await service.subject(context.principal)
    agent = await _agent(context)
    if agent is None:
        raise Refused("There is no conversation yet; send a message first.", code="no_session")
    return await service.subject(context.principal, agent=agent)


async def _agent(context: CommandContext) -> str | None:
    if context.session is None:
        return context.agent
    return (await context.service.row(context.session, context.principal)).agent


def _service(context: CommandContext) -> "Memory":
    if context.service.memory is None:
        raise NotFound(
            "No agent of this gateway has a memory; add the 'memory' toolset to one in tidegate.toml.", code="no_memory"
        )
    return context.service.memory


def _with_hint(error: NotFound) -> NotFound:
    """Adds a hint for chat users to the error."""
    if error.code != "note_not_found":
        return error
    return NotFound(f"{error.message.rstrip('.')}; /memory lists the notes.", code="no_such_note")


def _number(text: str) -> int:
    digits = text.strip().strip("[]")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 15):
        raise Refused("The number of the note is missing; /memory lists all notes.", code="missing_argument")
    return int(digits)


COMMANDS = (
    SlashCommand(
        name="memory",
        arguments="[agent] [add|edit|forget …]",
        help="Show or change the notes about you or, with agent, about the agent's work.",
        handler=memory,
        mid_turn="works immediately; the agent sees the change with the next message",
    ),
)
