"""Usage: tokens as providers counted them, or as we estimate them where they did not; one row per model call.

Guarantee: rows are only added; deleting a session takes the names out of its rows and leaves the numbers. What a
principal has spent stays his all the same, as one number an hour that says nothing of the conversation, so that no
budget grows by deleting. A sum for one principal, agent, session or job looks at the rows of that one alone, a sum for
all at those since the time that is asked for; times rise with the rows. What the demo model counts is no spending.
"""

import math
from typing import Literal, get_args

from tidegate.store.rows import Db, Spent, UsageTotal
from tidegate.values import Usage

FREE = "demo"
"""The name under which the demo model's tokens are written down."""

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
    "hour": "strftime('%Y-%m-%d %H:00', at, 'unixepoch')",
    "day": "strftime('%Y-%m-%d', at, 'unixepoch')",
    "month": "strftime('%Y-%m', at, 'unixepoch')",
}
_NAMES: dict[By, str] = {
    "principal": "coalesce((SELECT name FROM principals WHERE id = key), '')",
    "session": "coalesce((SELECT coalesce(nullif(title, ''), name, '') FROM sessions WHERE id = key), '')",
}
_SUMS = (
    "count(*) AS calls, coalesce(sum(input), 0) AS input, coalesce(sum(cached), 0) AS cached,"
    " coalesce(sum(written), 0) AS written, coalesce(sum(output), 0) AS output,"
    " coalesce(sum(reasoning), 0) AS reasoning, coalesce(sum(cost), 0) AS cost, coalesce(sum(estimated), 0) AS estimated"
)
_COLUMNS = "calls, input, cached, written, output, reasoning, cost, estimated"
_SINCE = "id > coalesce((SELECT id FROM usage WHERE at < ?1 ORDER BY id DESC LIMIT 1), 0)"
"""Rows are added in the order of time, so that only those since then are looked at, however many there are before."""

_SPENT = "SELECT coalesce(sum(input + output), 0), coalesce(sum(cost), 0) FROM usage WHERE model <> ?2 AND"
_OF: dict[str, str] = {
    "principal": "principal = ?3 AND at >= ?1",
    "agent": "agent = ?3 AND at >= ?1",
    "session": "session = ?3 AND at >= ?1",
    "job": "job = ?3 AND job <> '' AND at >= ?1",
}


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


def spent(db: Db, since: float) -> Spent:
    """What all models together have used since a time."""
    return Spent(*db.execute(f"{_SPENT} {_SINCE}", (since, FREE)).get)


def spent_by(db: Db, per: Literal["principal", "agent", "session", "job"], key: str, since: float) -> Spent:
    """What one of them has used since a time; for a principal, that is the beginning of an hour."""
    tokens, cost = db.execute(f"{_SPENT} {_OF[per]}", (since, FREE, key)).get
    if per == "principal":
        kept = db.execute(
            "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost), 0) FROM spent WHERE principal = ? AND hour >= ?",
            (key, int(since // HOUR)),
        ).get
        tokens, cost = tokens + kept[0], cost + kept[1]
    return Spent(tokens, cost)


def totals(
    db: Db,
    *,
    by: By,
    since: float = 0.0,
    until: float = math.inf,
    principal: str | None = None,
    limit: int = 100,
) -> list[UsageTotal]:
    """Sums of calls in a time, of one principal or of all: in the order of time (the latest `limit`), or else those
    that cost most first."""
    timed = by in ("hour", "day", "month")
    order = "key DESC" if timed else "cost DESC, input + output DESC, key"
    rows = db.execute(
        f"SELECT key, {_NAMES.get(by, chr(39) * 2)}, {_COLUMNS} FROM (SELECT {_KEYS[by]} AS key, {_SUMS} FROM usage"
        f" WHERE {_within(principal)} GROUP BY 1 ORDER BY {order} LIMIT ?4)",
        (since, until, principal, limit),
    )
    found = [UsageTotal(*row) for row in rows]
    return found[::-1] if timed else found


def total(db: Db, *, since: float = 0.0, until: float = math.inf, principal: str | None = None) -> UsageTotal:
    """The same, all in one."""
    row = db.execute(f"SELECT {_SUMS} FROM usage WHERE {_within(principal)}", (since, until, principal)).get
    return UsageTotal("", "", *row)


def of_session(db: Db, session: str) -> UsageTotal:
    """Everything that one conversation has used."""
    return UsageTotal(session, "", *db.execute(f"SELECT {_SUMS} FROM usage WHERE session = ?", (session,)).get)


def jobs(db: Db, limit: int) -> list[str]:
    """The names of jobs that have used anything, in their order; one look at the index for each."""
    first = "SELECT job FROM usage WHERE job <> '' AND job > ? ORDER BY job LIMIT 1"
    found: list[str] = []
    while len(found) < limit and (job := db.execute(first, (found[-1] if found else "",)).get) is not None:
        found.append(job)
    return found


def leave_numbers(db: Db, session: str, *, named: bool) -> None:
    """The session is being deleted: its rows lose what leads back to it. With `named`, they lose whose it was too."""
    if not named:
        db.execute("UPDATE usage SET session = NULL, turn = NULL WHERE session = ?", (session,))
        return
    db.execute(
        "INSERT INTO spent(principal, hour, tokens, cost)"
        " SELECT principal, CAST(at / ?3 AS INTEGER), sum(input + output), sum(cost) FROM usage"
        " WHERE session = ?1 AND principal IS NOT NULL AND model <> ?2 GROUP BY 1, 2"
        " ON CONFLICT(principal, hour) DO UPDATE SET tokens = tokens + excluded.tokens, cost = cost + excluded.cost",
        (session, FREE, HOUR),
    )
    db.execute("UPDATE usage SET session = NULL, turn = NULL, principal = NULL WHERE session = ?", (session,))


def _within(principal: str | None) -> str:
    whose = f"{_SINCE} AND ?3 IS NULL" if principal is None else "principal = ?3"
    return f"{whose} AND at >= ?1 AND at < ?2"
