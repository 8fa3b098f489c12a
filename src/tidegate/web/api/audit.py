"""The audit log over HTTP, for the owner: who did what, when, with what outcome. Bounded and paged."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.sessions import Sessions
from tidegate.store import AuditKind, AuditRow
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer
from tidegate.web.app.request_body import moment

MOST_ROWS = 1000
"""Of one page."""

_PLACE = re.compile(r"(\d{1,15}\.\d{1,20}):(\d{1,18})", re.ASCII)
"""When and which the last event of a page was."""

Id = Annotated[str, Meta(min_length=1, max_length=200)]


class AuditQuery(msgspec.Struct):
    since: Annotated[
        str, Meta(min_length=1, max_length=40, description="A time span up to now like 7d, or a date or time of UTC.")
    ] = "30d"
    kind: Annotated[AuditKind, Meta(description="Only events of this kind.")] | None = None
    principal: Annotated[Id, Meta(description="By or about the principal of this name or id.")] | None = None
    session: Annotated[Id, Meta(description="In the conversation of this id.")] | None = None
    host: (
        Annotated[str, Meta(min_length=1, max_length=253, description="Contacts with this host by web tools.")] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 200
    before: Annotated[str, Meta(max_length=100, description="`next` of the page before.")] | None = None


class AuditEvent(msgspec.Struct, frozen=True):
    """One event. `principal` is whoever acted (null: the gateway itself) and `name` what they are called now; `subject`
    holds ids, separated by spaces; `digest` is keyed, equal for equal content, and in hexadecimal."""

    id: int
    at: float
    kind: AuditKind
    outcome: str
    principal: str | None
    name: str | None
    session: str | None
    subject: str
    digest: str | None


class AuditAnswer(msgspec.Struct, frozen=True):
    """The latest first."""

    events: list[AuditEvent]
    next: str | None
    """Give this as `before` for the next page; null at the end."""


class AuditApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/audit", handler=self.events, who="configure", query=AuditQuery,
                summary="List the events of the audit log", answers={200: AuditAnswer}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def events(self, ask: Ask) -> HttpResponse:
        query: AuditQuery = ask.query
        since = moment("since", query.since, self._service.now())
        before = None if query.before is None else _place(query.before)
        rows, names = await self._service.audit_events(
            since=since,
            kind=query.kind,
            principal=query.principal,
            session=query.session,
            host=query.host,
            before=before,
            limit=query.limit + 1,
        )
        shown = rows[: query.limit]
        last = shown[-1] if len(rows) > query.limit else None
        return json_answer(
            AuditAnswer([_event(row, names) for row in shown], None if last is None else f"{last.at!r}:{last.id}")
        )


def _event(row: AuditRow, names: dict[str, str]) -> AuditEvent:
    return AuditEvent(
        id=row.id,
        at=row.at,
        kind=row.kind,
        outcome=row.outcome,
        principal=row.principal,
        name=None if row.principal is None else names.get(row.principal),
        session=row.session,
        subject=row.subject,
        digest=None if row.digest is None else row.digest.hex(),
    )


def _place(text: str) -> tuple[float, int]:
    place = _PLACE.fullmatch(text)
    if place is None:
        raise Refused("before must be the `next` of the page before.", param="before")
    return float(place[1]), int(place[2])
