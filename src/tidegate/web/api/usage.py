"""`/api/usage` and `/api/budgets`: what models cost, and the budgets.

Each user sees their own usage; the owner sees everyone's. Only the owner sees shared budgets. The number of rows is
bounded; totals always cover all of them.
"""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.sessions import Sessions
from tidegate.status_report import BudgetView
from tidegate.store import UsageTotal, usage
from tidegate.values import BILLION
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_request import parse_time
from tidegate.web.app.http_response import HttpResponse, json_response

MOST_ROWS = 1000
"""Maximum number of rows in a response: more than the hours in a month."""

Time = Annotated[str, Meta(min_length=1, max_length=40)]


class UsageQuery(msgspec.Struct):
    by: Annotated[usage.By, Meta(description="The key by which calls are grouped.")] = "model"
    since: Annotated[Time, Meta(description="A time span before now like 7d, or a date or time in UTC.")] = "30d"
    until: Annotated[Time, Meta(description="The end, in the same format; default: now.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 200


class UsageRow(msgspec.Struct, frozen=True):
    """The total of all model calls in one group. `cached` and `written` are the numbers of `input` tokens read from and
    written to the provider's cache; `reasoning` is part of `output`. `cost` is in dollars, counting only models with
    known prices. `estimated` is the number of calls whose tokens the provider did not report."""

    key: str
    name: str
    calls: int
    input: int
    cached: int
    written: int
    output: int
    reasoning: int
    cost: float
    estimated: int


class UsageAnswer(msgspec.Struct, frozen=True):
    """Rows grouped by time are in chronological order. All others are sorted by cost, highest first. `more` is true if
    there are further rows; `total` covers all rows."""

    by: usage.By
    since: float
    until: float | None
    rows: list[UsageRow]
    total: UsageRow
    more: bool


class BudgetsQuery(msgspec.Struct):
    session: (
        Annotated[str, Meta(min_length=1, max_length=200, description="Include the budgets of this conversation.")]
        | None
    ) = None


class BudgetsAnswer(msgspec.Struct, frozen=True):
    """`more` is true if there are further budgets that are not listed."""

    budgets: list[BudgetView]
    more: bool


class UsageApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/usage", handler=self.usage, query=UsageQuery,
                summary="Show tokens and cost of models: your own; for the owner, everyone's",
                responses={200: UsageAnswer},
            ),
            Endpoint(
                method="GET", path="/api/budgets", handler=self.budgets, query=BudgetsQuery,
                summary="Show budgets and their use: your own; for the owner, all",
                responses={200: BudgetsAnswer}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def usage(self, request: Request) -> HttpResponse:
        query: UsageQuery = request.query
        now = self._service.now()
        since = parse_time("since", query.since, now)
        until = None if query.until is None else parse_time("until", query.until, now)
        if until is not None and until <= since:
            raise Refused("until must be later than since.", param="until")
        rows, total = await self._service.usage(
            request.caller.principal,
            by=query.by,
            since=since,
            until=math.inf if until is None else until,
            limit=query.limit + 1,
        )
        shown = rows[-query.limit :] if query.by in ("hour", "day", "month") else rows[: query.limit]
        return json_response(
            UsageAnswer(
                by=query.by,
                since=since,
                until=until,
                rows=[_row(row) for row in shown],
                total=_row(total),
                more=len(rows) > query.limit,
            )
        )

    async def budgets(self, request: Request) -> HttpResponse:
        query: BudgetsQuery = request.query
        principal = request.caller.principal
        session = None if query.session is None else await self._service.row(query.session, principal)
        return json_response(BudgetsAnswer(*await self._service.budgets_of(principal, session)))


def _row(total: UsageTotal) -> UsageRow:
    fields: dict[str, Any] = msgspec.structs.asdict(total)
    return UsageRow(**{**fields, "cost": total.cost / BILLION})
