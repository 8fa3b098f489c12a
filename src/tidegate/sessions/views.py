"""What callers are shown of a session: a value made from its rows and from what is present of it."""

from typing import Any

import msgspec

from tidegate.store import SessionRow, Setting
from tidegate.values import Frozen


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
    settings: dict[str, SettingView] = msgspec.field(default_factory=dict)


class AgentView(Frozen, frozen=True, omit_defaults=False):
    name: str
    model: str
    description: str = ""


def view(
    row: SessionRow, *, running: str | None, waiting: int, model: str, settings: tuple[Setting, ...] = ()
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
        settings={
            setting.key: SettingView(value=setting.value, source=setting.source, expires=setting.expires)
            for setting in settings
        },
    )
