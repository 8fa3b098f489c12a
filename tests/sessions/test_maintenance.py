"""Maintenance tasks: each run removes everything that is due, in batches between which turns run."""

import os
from pathlib import Path
from typing import Any

import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, Core, core
from tidegate.sessions import lifecycle
from tidegate.sessions import maintenance as maintenance_tasks
from tidegate.store import Db, audit, maintenance, messages, receipts, sessions
from tidegate.values import Message, Prefix
from tidegate.workspaces.bounds import DEFAULT_BOUNDS

pytestmark = pytest.mark.anyio

MANY = 3 * lifecycle.BATCH + 7


async def run(gateway: Core, name: str) -> None:
    (chore,) = [chore for chore in gateway.service.maintenance_tasks() if chore.name == name]
    await chore.run()


async def count(gateway: Core, what: str) -> int:
    def read(db: Db) -> int:
        return int(db.execute(f"SELECT count(*) FROM {what}").get)

    return await gateway.store.read(read)


def many_sessions(db: Db, kind: Any, number: int) -> None:
    for each in range(number):
        sessions.create(
            db,
            id=f"s_{kind}_{each}",
            principal=ANNA.id,
            channel="http",
            name=None,
            kind=kind,
            agent="main",
            extra="",
            parent=None,
            now=1.0,
            prefix=Prefix(prompt="the same for all"),
            encoder=1,
        )


async def test_one_run_removes_every_expired_receipt(home: Path, model: ScriptedModel) -> None:
    """L20, L04: a hundred batches if need be, each a write of its own."""
    number = 5 * receipts.BATCH + 3

    def fill(db: Db) -> None:
        db.executemany(
            "INSERT INTO receipts(principal, source, key, digest, turn, at, expires)"
            " VALUES('p', 's', ?, x'', 't', 1, 2)",
            ((str(each),) for each in range(number)),
        )

    async with core(home, model=model) as gateway:
        await gateway.store.write(fill)
        before = gateway.store.stats().writes
        await run(gateway, "tidy")
        assert await count(gateway, "receipts") == 0
        assert gateway.store.stats().writes - before > number // receipts.BATCH


async def test_one_run_removes_every_row_of_the_audit_log_whose_retention_is_over(
    home: Path, model: ScriptedModel
) -> None:
    """X24, L19: `expiry.audit` sets the retention; younger rows stay, and the number of rows is known."""
    day, number = 86400.0, 3 * maintenance.BATCH + 7

    def fill(db: Db) -> None:
        for each in range(number + 5):
            audit.append(db, "tool", "done", 1.0 if each < number else 3 * day)

    async with core(home, '[expiry]\naudit = "2d"', model=model, clock=lambda: 4 * day) as gateway:
        await gateway.store.write(fill)
        await run(gateway, "tidy")
        assert await count(gateway, "audit") == 5
        assert gateway.service.status().audit.rows == 5


async def test_one_run_removes_every_unused_prompt(home: Path, model: ScriptedModel) -> None:
    """L20, L04: however many one-shot calls had their own prompt."""

    def fill(db: Db) -> None:
        db.executemany("INSERT INTO prefixes(id, body) VALUES(?, x'')", ((b"%d" % each,) for each in range(2003)))

    async with core(home, model=model) as gateway:
        await gateway.say("one")
        await gateway.store.write(fill)
        await run(gateway, "tidy")
        assert await count(gateway, "prefixes") == 1


async def test_one_run_ends_every_idle_session(home: Path, model: ScriptedModel) -> None:
    """V17, L29: named sessions end, and leftovers of one-shot calls are deleted."""
    async with core(home, '[expiry]\nnamed_idle = "1h"\nephemeral_idle = "1h"', model=model) as gateway:
        await gateway.store.write(many_sessions, "named", MANY)
        await gateway.store.write(many_sessions, "ephemeral", MANY)
        await run(gateway, "expire")
        assert await count(gateway, "sessions WHERE ended IS NULL") == 0
        assert await count(gateway, "sessions WHERE end_reason = 'expiry'") == MANY
        assert await count(gateway, "sessions") == MANY
        assert await count(gateway, "endings WHERE done IS NULL") == 0


async def test_one_run_removes_every_transcript_past_its_retention(home: Path, model: ScriptedModel) -> None:
    """V06: all that is due."""
    async with core(home, model=model) as gateway:
        await gateway.store.write(many_sessions, "named", MANY)
        await gateway.store.write(lambda db: db.execute("UPDATE sessions SET ended = 1, end_reason = 'new'"))
        assert await gateway.components.endings.purge(3600.0) == MANY
        assert await count(gateway, "sessions") == 0


async def test_the_file_gives_its_free_pages_back_in_one_run(home: Path, model: ScriptedModel) -> None:
    """L20: after a large delete."""
    async with core(home, model=model) as gateway:
        session = (await gateway.say("one")).session

        def fill(db: Db) -> None:
            db.execute("CREATE TABLE ballast(body BLOB)")
            db.execute("INSERT INTO ballast VALUES(zeroblob(4096 * 1000))")

        await gateway.store.write(fill)
        await gateway.store.write(lambda db: db.execute("DROP TABLE ballast"))

        def free(db: Db) -> int:
            return int(db.execute("PRAGMA freelist_count").get)

        assert await gateway.store.read(free) > 2 * maintenance_tasks.VACUUM_PAGES
        await run(gateway, "tidy")
        assert await gateway.store.read(free) == 0
        rows = await gateway.store.read(messages.page, session)
        assert rows[0].message == Message(role="user", text="one")


async def test_the_timers_look_after_sandboxes_folders_and_the_spool(home: Path, model: ScriptedModel) -> None:
    """L16, L19, D4, S11: things without an owner are removed, and unused ones are closed."""
    extra = '[workspaces]\nbackend = "bubblewrap"'
    nobody = "s_" + "0" * 32
    async with core(home, extra, model=model, tools='"terminal"') as gateway:
        outcome = await gateway.say('[tool terminal {"command": "true"}] [say done]')
        folder, file = home / "workspaces" / nobody, home / "spool" / nobody / ("sp_" + "0" * 32)
        folder.mkdir(parents=True)
        file.parent.mkdir(parents=True)
        file.write_text("left behind")
        os.utime(file, (1, 1))
        os.utime(file.parent, (1, 1))
        site = gateway.components.workspaces.present(outcome.session)
        assert site is not None and site.sandbox is not None
        site.last_used -= DEFAULT_BOUNDS.idle_seconds
        await run(gateway, "workspaces")
        assert gateway.components.workspaces.present(outcome.session) is None
        assert folder.exists() and file.exists()
        await run(gateway, "folders")
        assert not folder.exists() and file.exists()
        await run(gateway, "spool")
        assert not file.parent.exists()
