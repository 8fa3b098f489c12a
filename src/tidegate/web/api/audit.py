"""`/api/audit`: the audit log, for the owner. Each event has a time, principal, subject and outcome. Lists are bounded
and paged."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.sessions import Sessions
from tidegate.store import AuditKind, AuditRow
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_request import parse_time
from tidegate.web.app.http_response import HttpResponse, json_response

MOST_ROWS = 1000
"""Maximum number of events on a page."""

_PLACE = re.compile(r"(\d{1,15}\.\d{1,20}):(\d{1,18})", re.ASCII)
"""A position in the log: the time and id of a page's last event."""

Id = Annotated[str, Meta(min_length=1, max_length=200)]


class AuditQuery(msgspec.Struct):
    since: Annotated[
        str, Meta(min_length=1, max_length=40, description="A time span before now like 7d, or a date or time in UTC.")
    ] = "30d"
    kind: Annotated[AuditKind, Meta(description="Only events of this kind.")] | None = None
    principal: Annotated[Id, Meta(description="Events by or about the principal with this name or id.")] | None = None
    session: Annotated[Id, Meta(description="Events in the conversation with this id.")] | None = None
    host: (
        Annotated[str, Meta(min_length=1, max_length=253, description="Requests of web tools to this host.")] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 200
    before: Annotated[str, Meta(max_length=100, description="`next` of the previous page.")] | None = None


class AuditEvent(msgspec.Struct, frozen=True):
    """One event. `principal` is the actor's id (null: the gateway itself) and `name` their current name. `subject`
    contains ids separated by spaces. `digest` is a keyed hash in hexadecimal; equal content has equal digests."""

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
    """Events, latest first."""

    events: list[AuditEvent]
    next: str | None
    """Pass this as `before` for the next page; null on the last page."""


class AuditApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/audit", handler=self.events, access="configure", query=AuditQuery,
                summary="List the events of the audit log", responses={200: AuditAnswer}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def events(self, request: Request) -> HttpResponse:
        query: AuditQuery = request.query
        since = parse_time("since", query.since, self._service.now())
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
        return json_response(
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
        raise Refused("before must be the `next` of the previous page.", param="before")
    return float(place[1]), int(place[2])
