"""Usage rows: sums by key, period and principal, without reading all rows."""

import contextlib
import re
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.store.rows import OWNER, count, new_session
from tidegate.config.value_types import HIGHEST_PRICE
from tidegate.models import Prices
from tidegate.models.formats.token_counts import TOKENS
from tidegate.store import Db, SpentTotal, Store, migrations, principals, sessions, usage
from tidegate.store.sqlite.connections import connect
from tidegate.values import Usage

pytestmark = pytest.mark.anyio

DAY = 86400.0
START = 20_000 * DAY  # 2024-10-04


def use(db: Db, **fields: Any) -> None:
    given: dict[str, Any] = {
        "session": "s_1",
        "principal": "p_1",
        "agent": "main",
        "channel": "http",
        "model": "m",
        "turn": "t_1",
        "tokens": Usage(input=10, cached=4, written=3, output=2, reasoning=1, cost=100),
        "now": START,
        **fields,
    }
    usage.add(db, **given)


def some(db: Db) -> None:
    principals.add(db, id="p_1", name="anna", role="user", agents=None, now=1.0)
    new_session(db, "s_1", name="tide", principal="p_1")
    use(db)
    use(db, now=START + 3600, agent="other", job="news", tokens=Usage(input=1, output=1, cost=500, estimated=True))
    use(db, now=START + DAY, principal="p_2", session="s_2", channel="page", model="n", job="news")
    use(db, now=START + 40 * DAY, principal="p_2", session=None, model="demo", tokens=Usage(input=5000, output=5000))


async def test_every_number_of_a_call_is_added_up(store: Store) -> None:
    await store.write(some)
    total = await store.read(usage.total, until=START + 2 * DAY)
    assert (total.calls, total.input, total.cached, total.written) == (3, 21, 8, 6)
    assert (total.output, total.reasoning, total.cost, total.estimated) == (5, 2, 700, 1)
    assert (await store.read(usage.of_session, "s_1")).cost == 600
    assert (await store.read(usage.of_session, "s_none")).calls == 0


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("model", ["m", "n", "demo"]),
        ("agent", ["other", "main"]),
        ("principal", ["p_1", "p_2"]),
        ("channel", ["http", "page"]),
        ("session", ["s_1", "s_2", ""]),
        ("job", ["news", ""]),
        ("hour", ["2024-10-04 00:00", "2024-10-04 01:00", "2024-10-05 00:00", "2024-11-13 00:00"]),
        ("day", ["2024-10-04", "2024-10-05", "2024-11-13"]),
        ("month", ["2024-10", "2024-11"]),
    ],
)
async def test_usage_is_summed_by_the_requested_key(store: Store, by: usage.By, keys: list[str]) -> None:
    """The most expensive first, times in order; the sums include all calls."""
    await store.write(some)
    rows = await store.read(usage.totals, by=by)
    assert [row.key for row in rows] == keys
    total = await store.read(usage.total)
    for field in ("calls", "input", "cached", "written", "output", "reasoning", "cost", "estimated"):
        assert sum(getattr(row, field) for row in rows) == getattr(total, field)
    names = {"principal": ["anna", ""], "session": ["tide", "", ""]}
    assert [row.name for row in rows] == names.get(by, [""] * len(rows))
    latest = keys[-1:] if by in ("hour", "day", "month") else keys[:1]
    assert [row.key for row in await store.read(usage.totals, by=by, limit=1)] == latest


async def test_a_principal_sees_their_own_usage_in_the_requested_period(store: Store) -> None:
    """X05: including its first moment and excluding its last."""
    await store.write(some)
    mine = await store.read(usage.totals, by="model", principal="p_2")
    assert [(row.key, row.calls) for row in mine] == [("n", 1), ("demo", 1)]
    within = await store.read(usage.total, principal="p_1", since=START, until=START + 3600)
    assert within.cost == 100
    assert (await store.read(usage.total, since=START + DAY, until=START + 40 * DAY)).calls == 1
    assert (await store.read(usage.totals, by="day", since=START + 41 * DAY)) == []


@pytest.mark.parametrize("folded", [0, 1, 2, 3, 4, 9])
async def test_spending_excludes_the_demo_model(store: Store, folded: int) -> None:
    """X22: in total and for each principal, agent, conversation and job, since an hour, with any number of calls
    already folded into hours."""
    await store.write(some)
    assert await store.write(usage.fold, folded) == min(4, folded)
    assert await store.read(usage.spent, 0.0) == SpentTotal(26, 700)
    assert await store.read(usage.spent, START + 3600) == SpentTotal(14, 600)
    for per, key, since, spent in (
        ("principal", "p_1", 0.0, SpentTotal(14, 600)),
        ("principal", "p_2", 0.0, SpentTotal(12, 100)),
        ("principal", "p_1", START + 3600, SpentTotal(2, 500)),
        ("agent", "other", 0.0, SpentTotal(2, 500)),
        ("session", "s_1", START + 3600, SpentTotal(2, 500)),
        ("job", "news", 0.0, SpentTotal(14, 600)),
        ("job", "", 0.0, SpentTotal(0, 0)),
    ):
        assert await store.read(usage.spent_by, per, key, since) == spent
    assert await store.read(usage.jobs, 10) == ["news"]
    assert await store.read(usage.jobs, 0) == []


@pytest.mark.parametrize("folded", [0, 1, 9])
async def test_a_deleted_conversation_leaves_its_principals_count_and_no_name(store: Store, folded: int) -> None:
    """B3, X22: the principal's hourly spending stays and is counted once; nothing refers to the conversation."""
    await store.write(some)
    await store.write(usage.fold, folded)
    await store.write(sessions.end, "s_1", reason="delete", hooks=(), now=START)
    assert await store.write(sessions.delete, "s_1")
    assert await store.read(count, "usage", "session = 's_1' OR principal = 'p_1'") == 0
    assert await store.read(count, "usage") == 4
    for since, spent in (
        (0.0, SpentTotal(14, 600)),
        (START + 3600, SpentTotal(2, 500)),
        (START + DAY, SpentTotal(0, 0)),
    ):
        assert await store.read(usage.spent_by, "principal", "p_1", since) == spent
    assert (await store.read(usage.total)).cost == 700
    assert await store.read(usage.spent, 0.0) == SpentTotal(26, 700)
    assert await store.read(usage.spent_by, "agent", "main", 0.0) == SpentTotal(24, 200)
    await store.write(usage.fold, 100)
    assert await store.read(usage.spent, 0.0) == SpentTotal(26, 700)
    assert await store.read(usage.spent_by, "agent", "main", 0.0) == SpentTotal(24, 200)
    await store.write(new_session, "s_3", principal="p_1")
    await store.write(use, session="s_3")
    await store.write(sessions.delete, "s_3")
    assert await store.read(usage.spent_by, "principal", "p_1", 0.0) == SpentTotal(26, 700)


@pytest.mark.parametrize("principal", [None, OWNER])
def test_no_sum_looks_at_rows_that_it_is_not_about(tmp_path: Path, principal: str | None) -> None:
    """L20: each sum finds its rows by an index, or recent rows by their position."""
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    seen: dict[str, Any] = {}

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen.setdefault(sql, bindings)
        return True

    with contextlib.closing(db):
        migrations.migrate(db)
        new_session(db, "s_1")
        db.exec_trace = note
        for by in usage.BY:
            usage.totals(db, by=by, since=5.0, principal=principal)
        usage.total(db, since=5.0, principal=principal)
        usage.of_session(db, "s_1")
        usage.spent(db, 5.0)
        usage.spent_by(db, "principal", "p", 5.0)
        usage.spent_by(db, "agent", "p", 5.0)
        usage.spent_by(db, "session", "p", 5.0)
        usage.spent_by(db, "job", "p", 5.0)
        usage.jobs(db, 5)
        use(db)
        usage.fold(db, 5)
        sessions.delete(db, "s_1")
        db.exec_trace = None
        plans = {sql: [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, seen[sql])] for sql in seen}
    for sql, plan in plans.items():
        for line in plan:
            # The place of the first row since a time is looked for from the end, and no further than that.
            allowed = "SCAN usage" if "ORDER BY id DESC LIMIT 1" in sql and line == "SCAN usage" else None
            assert line == allowed or not re.match(r"SCAN (usage|spent|principals|sessions)\b", line), f"{line}\n{sql}"
    for per in ("principal", "agent", "job"):
        (plan,) = (plan for sql, plan in plans.items() if "FROM spent" in sql and f"AND {per} = ?2" in sql)
        assert plan == [f"SEARCH spent USING INDEX spent_{per} ({per}=? AND hour>?)"]
        (plan,) = (
            plan for sql, plan in plans.items() if "FROM usage" in sql and f"AND {per} = ?3" in sql and "meta" in sql
        )
        assert plan[0] == "SEARCH usage USING INTEGER PRIMARY KEY (rowid>?)"


async def test_counts_that_no_endpoint_can_mean_still_add_up(store: Store) -> None:
    """A2: an endpoint that reports absurd counts must not break the sums that the gateway computes at start."""
    most = Usage(input=3 * TOKENS, cached=TOKENS, written=TOKENS, output=TOKENS)
    dear = Prices(input=HIGHEST_PRICE, output=HIGHEST_PRICE).cost(most)
    calls = 2000

    def spend(db: Db) -> None:
        for _ in range(calls):
            use(db, tokens=msgspec.structs.replace(most, cost=dear))

    await store.write(spend)
    expected = SpentTotal(calls * 4 * TOKENS, calls * dear)
    assert await store.read(usage.spent, START) == expected
    assert (await store.read(usage.total)).cost == expected.cost
    assert await store.write(usage.fold, calls) == calls
    assert await store.read(usage.spent_by, "principal", "p_1", START) == expected
