"""Sessions and agents as callers see them. Views are values built from rows and the live state."""

from typing import Any

import msgspec

from tidegate.store import SessionRow, SettingRow
from tidegate.store.tables.settings import OWN
from tidegate.turns import COMPACTION_REQUESTED, FALLBACK, REASONING_ERA, SUMMARY_COOLDOWN, FallbackState
from tidegate.values import Frozen

UNCHOSEN = (FALLBACK, SUMMARY_COOLDOWN, COMPACTION_REQUESTED, REASONING_ERA)
"""Settings that were not chosen by a user, or that end with the next turn."""


class SettingView(Frozen, frozen=True):
    """One setting of a session, with its source and its expiry."""

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
    """True if the model is the built-in demo model."""
    settings: dict[str, SettingView] = msgspec.field(default_factory=dict)
    fallback: FallbackState | None = None
    """The fallback model that currently replaces the agent's own model, or None if there is none."""
    excerpt: str | None = None
    """In search results: the part of the latest matching message that contains the words."""


class AgentView(Frozen, frozen=True, omit_defaults=False):
    name: str
    model: str
    description: str = ""
    demo: bool = False
    """True if the agent's model is the built-in demo model."""


def view(
    row: SessionRow,
    *,
    running: str | None,
    waiting: int,
    model: str,
    demo: bool,
    settings: tuple[SettingRow, ...] = (),
    fallback: FallbackState | None = None,
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
