"""Usage and budgets over HTTP: what models have cost, and what may still be spent.

Guarantee: a principal sees what he has used himself, the owner what everybody has; a budget that several share is the
owner's to see. Answers are bounded, their totals are not cut.
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
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer
from tidegate.web.app.request_body import moment

MOST_ROWS = 1000
"""Of one answer: a month by hours."""

Moment = Annotated[str, Meta(min_length=1, max_length=40)]


class UsageQuery(msgspec.Struct):
    by: Annotated[usage.By, Meta(description="What the numbers are added up by.")] = "model"
    since: Annotated[Moment, Meta(description="A time span up to now like 7d, or a date or time of UTC.")] = "30d"
    until: Annotated[Moment, Meta(description="Up to when, the same; by default up to now.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_ROWS)] = 200


class UsageRow(msgspec.Struct, frozen=True):
    """Model calls under one key, added up. `cached` and `written` are the parts of `input` that were read from and
    written to the provider's cache, `reasoning` a part of `output`; `cost` is in dollars, as far as prices are known;
    of `estimated` calls the provider did not count the tokens."""

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
    """By time in its order, else what costs most first. `more` says that `rows` are not all; `total` is of all."""

    by: usage.By
    since: float
    until: float | None
    rows: list[UsageRow]
    total: UsageRow
    more: bool


class BudgetsQuery(msgspec.Struct):
    session: (
        Annotated[str, Meta(min_length=1, max_length=200, description="Those of this conversation too.")] | None
    ) = None


class BudgetsAnswer(msgspec.Struct, frozen=True):
    """`more` says that there are others, which are not shown."""

    budgets: list[BudgetView]
    more: bool


class UsageApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/usage", handler=self.usage, query=UsageQuery,
                summary="What models have used and cost: yours, for the owner everybody's", answers={200: UsageAnswer},
            ),
            Endpoint(
                method="GET", path="/api/budgets", handler=self.budgets, query=BudgetsQuery,
                summary="What may be spent and what is: your budgets, for the owner all", answers={200: BudgetsAnswer},
                refusals=(404,),
            ),
        ]  # fmt: skip

    async def usage(self, ask: Ask) -> HttpResponse:
        query: UsageQuery = ask.query
        now = self._service.now()
        since = moment("since", query.since, now)
        until = None if query.until is None else moment("until", query.until, now)
        if until is not None and until <= since:
            raise Refused("until must be later than since.", param="until")
        rows, total = await self._service.usage(
            ask.caller.principal,
            by=query.by,
            since=since,
            until=math.inf if until is None else until,
            limit=query.limit + 1,
        )
        shown = rows[-query.limit :] if query.by in ("hour", "day", "month") else rows[: query.limit]
        return json_answer(
            UsageAnswer(
                by=query.by,
                since=since,
                until=until,
                rows=[_row(row) for row in shown],
                total=_row(total),
                more=len(rows) > query.limit,
            )
        )

    async def budgets(self, ask: Ask) -> HttpResponse:
        query: BudgetsQuery = ask.query
        principal = ask.caller.principal
        session = None if query.session is None else await self._service.row(query.session, principal)
        return json_answer(BudgetsAnswer(*await self._service.budgets_of(principal, session)))


def _row(total: UsageTotal) -> UsageRow:
    fields: dict[str, Any] = msgspec.structs.asdict(total)
    return UsageRow(**{**fields, "cost": total.cost / BILLION})
