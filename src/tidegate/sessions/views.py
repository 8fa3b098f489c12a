"""What callers are shown of a session and its questions: values made from rows and from what is present of it."""

from typing import Any, Literal

import msgspec

from tidegate.store import ApprovalRow, SessionRow, Setting, approvals
from tidegate.store.tables.settings import OWN
from tidegate.turns.compaction.compaction import COOLDOWN, ERA, WANTED
from tidegate.turns.fallback import KEY, Fallen
from tidegate.values import Frozen

UNCHOSEN = (KEY, COOLDOWN, WANTED, ERA)
"""Settings that nobody chose, or that are over with the next turn."""


class SettingView(Frozen, frozen=True):
    """One setting of a session, with where it came from and how long it holds."""

    value: Any
    source: str
    expires: float | None = None


class SessionView(Frozen, frozen=True, omit_defaults=False):
    id: str
    kind: str
    agent: str
    title: str
    channel: str
    principal: str
    created: float
    active: float
    name: str | None = None
    ended: float | None = None
    end_reason: str | None = None
    running: str | None = None
    waiting: int = 0
    model: str = ""
    demo: bool = False
    """Whether that is the built-in demo model."""
    settings: dict[str, SettingView] = msgspec.field(default_factory=dict)
    fallback: Fallen | None = None
    """Who answers instead of the agent's own model, while that is so."""


class AgentView(Frozen, frozen=True, omit_defaults=False):
    name: str
    model: str
    description: str = ""
    demo: bool = False
    """Whether its model is the built-in demo model."""


class QuestionView(Frozen, frozen=True, omit_defaults=False):
    """What a turn asks a person: an approval of one exact action, shown in `summary`, or a question. `state` is open,
    approved, denied, answered, expired or cancelled. `conversation` is the session that it is asked in: that of the
    turn itself, or of the one that has given it as a task. `person` is the name of whoever it belongs to."""

    id: str
    session: str
    conversation: str
    person: str
    turn: str
    kind: Literal["approval", "question"]
    tool: str
    summary: str
    choices: tuple[str, ...]
    state: str
    asked: float
    expires: float | None = None
    answer: str | None = None
    answered_at: float | None = None
    for_owner: bool = False
    """Whether only the owner of the gateway may answer it."""


def view_question(row: ApprovalRow, conversation: str, person: str) -> QuestionView:
    return QuestionView(
        id=row.id,
        session=row.session,
        conversation=conversation,
        person=person,
        turn=row.turn,
        kind=row.kind,
        tool=row.tool,
        summary=row.summary,
        choices=row.choices,
        state=row.state,
        asked=row.asked,
        expires=row.expires,
        answer=row.answer,
        answered_at=row.answered_at,
        for_owner=row.may_answer == approvals.OWNER,
    )


def view(
    row: SessionRow,
    *,
    running: str | None,
    waiting: int,
    model: str,
    demo: bool,
    settings: tuple[Setting, ...] = (),
    fallback: Fallen | None = None,
) -> SessionView:
    return SessionView(
        id=row.id,
        kind=row.kind,
        agent=row.agent,
        title=row.title,
        channel=row.channel,
        principal=row.principal,
        created=row.created,
        active=row.active,
        name=row.name,
        ended=row.ended,
        end_reason=row.end_reason,
        running=running,
        waiting=waiting,
        model=model,
        demo=demo,
        settings={
            setting.key: SettingView(value=setting.value, source=setting.source, expires=setting.expires)
            for setting in settings
            if setting.key not in UNCHOSEN and not setting.key.startswith(OWN)
        },
        fallback=fallback,
    )


class NoteView(Frozen, frozen=True, omit_defaults=False):
    """One note. `author` is the id of who wrote it and `by` his name; `source` says how: `person` himself, `tool` in
    the conversation `session`, or `end`, when that had ended."""

    id: int
    text: str
    author: str
    by: str
    source: Literal["tool", "person", "end"]
    at: float
    session: str | None


class Notebook(Frozen, frozen=True, omit_defaults=False):
    """All notes about one person or one agent's work, in the order in which conversations begin with them. `whose` is
    his name or the agent's; `text` has one a line, each with its number, as it can be edited; `version` is to be given
    with a text that is to take their place."""

    about: Literal["person", "agent"]
    whose: str
    notes: tuple[NoteView, ...]
    bytes: int
    most: int
    version: str
    text: str
