"""Usage: one row per model call, with the tokens counted by the provider or, failing that, estimated by the gateway.

Rows are only added; deleting a session removes the names from its rows and leaves the numbers. Spending is also summed
up by the hour for each principal, agent and job, independently of conversations. Deleting a session therefore never
frees up a budget, and a sum reads hours instead of calls. To keep this cheap, a call adds one row without an index. A
timer folds these rows into hours, and sums include the rows that have not been folded yet. The demo model's tokens do
not count as spending.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from tidegate.store.dialect import BY_PRIMARY_KEY, day_key, hour_key, month_key
from tidegate.store.interface import Db
from tidegate.store.rows import SessionRow, SpentTotal, UsageTotal
from tidegate.values import Usage

FREE = "demo"
"""The name under which the demo model's tokens are recorded."""

HOUR = 3600

By = Literal["model", "agent", "principal", "channel", "session", "job", "hour", "day", "month"]
BY: tuple[By, ...] = get_args(By)

_KEYS: dict[By, str] = {
    "model": "model",
    "agent": "agent",
    "principal": "coalesce(principal, '')",
    "channel": "channel",
    "session": "coalesce(session, '')",
    "job": "job",
    "hour": hour_key("at"),
    "day": day_key("at"),
    "month": month_key("at"),
}
_NAMES: dict[By, str] = {
    "principal": "coalesce((SELECT name FROM principals WHERE id = key), '')",
    "session": "coalesce((SELECT coalesce(nullif(title, ''), name, '') FROM sessions WHERE id = key), '')",
}
_NO_NAME = "''"
_SUMS = (
    "count(*) AS calls, coalesce(sum(input), 0) AS input, coalesce(sum(cached), 0) AS cached,"
    " coalesce(sum(written), 0) AS written, coalesce(sum(output), 0) AS output,"
    " coalesce(sum(reasoning), 0) AS reasoning, coalesce(sum(cost), 0) AS cost,"
    " coalesce(sum(estimated), 0) AS estimated"
)
_COLUMNS = "calls, input, cached, written, output, reasoning, cost, estimated"
_SPENT = "coalesce(sum(input + output), 0), coalesce(sum(cost), 0) FROM usage WHERE model <> ?2 AND at >= ?1"
_UNFOLDED = "id > (SELECT value FROM meta WHERE key = 'spent')"
_KEPT = "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost), 0) FROM spent WHERE hour >= ?1"
_OF: dict[str, str] = {
    "": "agent <> ''",
    "principal": "principal = ?2 AND principal <> ''",
    "agent": "agent = ?2 AND agent <> ''",
    "job": "job = ?2 AND job <> ''",
}
"""SQL conditions on the hourly rows. A row without an agent records only a principal's spending."""

FOLDED_AT_ONCE = 2000
"""Number of calls folded into hours in one write, which takes a few milliseconds."""


def add(
    db: Db,
    *,
    session: str | None,
    principal: str | None,
    agent: str,
    channel: str,
    job: str = "",
    model: str,
    turn: str | None,
    tokens: Usage,
    now: float,
) -> None:
    db.execute(
        "INSERT INTO usage(session, principal, agent, channel, job, model, turn, at, input, cached, output, written,"
        " reasoning, cost, estimated) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session,
            principal,
            agent,
            channel,
            job,
            model,
            turn,
            now,
            tokens.input,
            tokens.cached,
            tokens.output,
            tokens.written,
            tokens.reasoning,
            tokens.cost,
            tokens.estimated,
        ),
    )


def add_side_calls(
    db: Db, session: SessionRow, calls: Sequence[tuple[str, Usage]], now: float, turn: str | None = None
) -> None:
    """Adds the rows of calls that were made for a session outside of its conversation, each with its model. If the
    session was deleted meanwhile, they are anonymous."""
    there = db.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).get is not None
    for model, tokens in calls:
        add(
            db,
            session=session.id if there else None,
            principal=session.principal if there else None,
            agent=session.agent,
            channel=session.channel,
            model=model,
            turn=turn if there else None,
            tokens=tokens,
            now=now,
        )


def spent(db: Db, since: float) -> SpentTotal:
    """Returns the usage of all models together since the given time, which must be at the beginning of an hour."""
    new = db.execute(f"SELECT {_SPENT} AND {_UNFOLDED}", (since, FREE)).get
    return _with_hours(db, new, "", "", since)


def spent_by(db: Db, per: Literal["principal", "agent", "session", "job"], key: str, since: float) -> SpentTotal:
    """Returns the usage of one principal, agent, session or job since the given time, which must be at the beginning of
    an hour."""
    if per == "session":
        return SpentTotal(*db.execute(f"SELECT {_SPENT} AND session = ?3", (since, FREE, key)).get)
    new = db.execute(f"SELECT {_SPENT} AND {_UNFOLDED} AND {per} = ?3 AND {per} <> ''", (since, FREE, key)).get
    return _with_hours(db, new, per, key, since)


def _with_hours(db: Db, new: tuple[int, int], per: str, key: str, since: float) -> SpentTotal:
    hour = int(since // HOUR)
    tokens, cost = db.execute(f"{_KEPT} AND {_OF[per]}", (hour, key) if per else (hour,)).get
    return SpentTotal(new[0] + tokens, new[1] + cost)


def fold(db: Db, limit: int) -> int:
    """Folds up to `limit` more calls into the hourly sums. Returns the number of calls."""
    folded, last = db.execute(
        "SELECT value, coalesce((SELECT max(id) FROM usage), 0) FROM meta WHERE key = 'spent'"
    ).get
    upto = min(last, folded + limit)
    if upto > folded:
        _add_to_hours(db, "coalesce(principal, ''), agent, job", "id > ?3 AND id <= ?4", (folded, upto))
        db.execute("UPDATE meta SET value = ? WHERE key = 'spent'", (upto,))
    return int(upto - folded)


def _add_to_hours(db: Db, whose: str, which: str, values: tuple[Any, ...]) -> None:
    db.execute(
        "INSERT INTO spent(hour, principal, agent, job, tokens, cost)"
        f" SELECT floor(at / ?2), {whose}, sum(input + output), sum(cost) FROM usage"
        f" WHERE model <> ?1 AND {which} GROUP BY 1, 2, 3, 4"
        " ON CONFLICT(hour, principal, agent, job) DO UPDATE SET tokens = spent.tokens + excluded.tokens,"
        " cost = spent.cost + excluded.cost",
        (FREE, HOUR, *values),
    )


def totals(
    db: Db,
    *,
    by: By,
    since: float = 0.0,
    until: float = math.inf,
    principal: str | None = None,
    limit: int = 100,
) -> list[UsageTotal]:
    """Returns sums over the calls in a period, for one or all principals. Sums by time are in chronological order,
    limited to the latest `limit`. Other sums are ordered by cost, highest first."""
    timed = by in ("hour", "day", "month")
    order = "key DESC" if timed else "cost DESC, input + output DESC, key"
    period, values = _period(since, until, principal)
    rows = db.execute(
        f"SELECT key, {_NAMES.get(by, _NO_NAME)}, {_COLUMNS} FROM (SELECT * FROM"
        f" (SELECT {_KEYS[by]} AS key, {_SUMS} FROM {period} GROUP BY 1) AS sums"
        f" ORDER BY {order} LIMIT ?) AS largest ORDER BY {order}",
        (*values, limit),
    )
    found = [UsageTotal(*row) for row in rows]
    return found[::-1] if timed else found


def total(db: Db, *, since: float = 0.0, until: float = math.inf, principal: str | None = None) -> UsageTotal:
    """Returns the sum over all calls in a period, for one or all principals."""
    period, values = _period(since, until, principal)
    row = db.execute(f"SELECT {_SUMS} FROM {period}", values).get
    return UsageTotal("", "", *row)


def of_session(db: Db, session: str) -> UsageTotal:
    """Returns one conversation's usage."""
    return UsageTotal(session, "", *db.execute(f"SELECT {_SUMS} FROM usage WHERE session = ?", (session,)).get)


def jobs(db: Db, limit: int) -> list[str]:
    """Returns the names of jobs with usage, in order. Each name takes one index lookup."""
    first = "SELECT job FROM spent WHERE job <> '' AND job > ? ORDER BY job LIMIT 1"
    found = {job for (job,) in db.execute(f"SELECT DISTINCT job FROM usage WHERE {_UNFOLDED} AND job <> ''")}
    last: str | None = ""
    while len(found) < limit and (last := db.execute(first, (last,)).get) is not None:
        found.add(last)
    return sorted(found)[:limit]


def anonymise(db: Db, session: str, *, named: bool) -> None:
    """Anonymises the rows of a session that is being deleted. The rows lose their session and turn and, with `named`,
    also their principal."""
    if not named:
        db.execute("UPDATE usage SET session = NULL, turn = NULL WHERE session = ?", (session,))
        return
    _add_to_hours(db, "principal, '', ''", f"session = ?3 AND principal IS NOT NULL AND {_UNFOLDED}", (session,))
    db.execute("UPDATE usage SET session = NULL, turn = NULL, principal = NULL WHERE session = ?", (session,))


def _period(since: float, until: float, principal: str | None) -> tuple[str, tuple[float | str, ...]]:
    """Returns the table and condition that select a period's rows, and the parameters. Rows are added in chronological
    order, so no earlier row is read."""
    first = "id > coalesce((SELECT id FROM usage WHERE at < ? ORDER BY id DESC LIMIT 1), 0)"
    within = f"usage {BY_PRIMARY_KEY} WHERE {first} AND at >= ? AND at < ?"
    if principal is None:
        return within, (since, since, until)
    return f"{within} AND principal = ?", (since, since, until, principal)
