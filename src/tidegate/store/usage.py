"""Usage: tokens as providers counted them, or as we estimate them where they did not; one row per model call.

Guarantee: rows are only added; deleting a session takes the names out of its rows and leaves the numbers.
"""

from typing import Literal

from tidegate.store.rows import Db, UsageTotal
from tidegate.values import Usage


def add(
    db: Db,
    *,
    session: str | None,
    principal: str | None,
    agent: str,
    channel: str,
    model: str,
    turn: str | None,
    tokens: Usage,
    now: float,
) -> None:
    db.execute(
        "INSERT INTO usage(session, principal, agent, channel, model, turn, at, input, cached, output)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session, principal, agent, channel, model, turn, now, tokens.input, tokens.cached, tokens.output),
    )


def totals(
    db: Db,
    *,
    by: Literal["principal", "agent", "channel", "model"],
    since: float = 0.0,
    principal: str | None = None,
    limit: int = 100,
) -> list[UsageTotal]:
    """Sums since a time, the largest first; `turns` counts model calls."""
    rows = db.execute(
        f"SELECT coalesce({by}, ''), count(*), sum(input), sum(cached), sum(output) FROM usage"
        " WHERE at >= ?1 AND (?2 IS NULL OR principal = ?2) GROUP BY 1 ORDER BY sum(input) + sum(output) DESC LIMIT ?3",
        (since, principal, limit),
    )
    return [UsageTotal(*row) for row in rows]


def spent(db: Db, since: float, free: str) -> int:
    """Tokens since a time, without those of the model `free`. Rows are added in the order of time, so that only those
    since then are looked at, however many there are before them."""
    return int(
        db.execute(
            "SELECT coalesce(sum(input + output), 0) FROM usage WHERE model <> ?2"
            " AND id > coalesce((SELECT id FROM usage WHERE at < ?1 ORDER BY id DESC LIMIT 1), 0)",
            (since, free),
        ).get
    )
