"""kill -9 of a process that writes without pause: every acknowledged write is there afterwards."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tidegate.store import Db, Store, messages

pytestmark = pytest.mark.anyio

ROUNDS = 4
WRITERS = 8

# Each acknowledged write is told to the parent in one line, after the acknowledgement.
_CHILD = f"""
import os, sys
from pathlib import Path
import anyio
from tests.store.rows import new_session, new_turn, user_message
from tidegate.store import Store, messages, sessions

def step(db, writer, number, start):
    session, turn = f"s_{{writer}}", f"t_{{writer}}"
    text = user_message("x" * (number % 3000))
    messages.append(db, session=session, turn=turn, step=f"{{start}}-{{number}}", message=text, now=1.0)

async def main():
    start = int(sys.argv[2])
    async with Store.open(Path(sys.argv[1]), wal_bytes=1 << 20) as store:
        for writer in range({WRITERS}):
            if await store.read(sessions.get, f"s_{{writer}}") is None:
                await store.write(new_session, f"s_{{writer}}")
                await store.write(new_turn, f"s_{{writer}}", f"t_{{writer}}")
        async def work(writer):
            number = 0
            while True:
                await store.write(step, writer, number, start)
                os.write(1, f"{{writer}} {{start}}-{{number}}\\n".encode())
                number += 1
        async with anyio.create_task_group() as group:
            for writer in range({WRITERS}):
                group.start_soon(work, writer)

anyio.run(main)
"""


def all_steps(db: Db) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for writer in range(WRITERS):
        found[str(writer)] = [row.step or "" for row in messages.journal(db, f"t_{writer}")]
    return found


def places(db: Db) -> list[tuple[int, int]]:
    rows = db.execute("SELECT count(*), max(seq) FROM messages GROUP BY session")
    return [(number, last) for number, last in rows]


async def test_every_acknowledged_write_is_there_after_kill_9(path: Path) -> None:
    """F4: no acknowledged write is lost, and the file is intact, at whatever moment the process is killed."""
    told: set[tuple[str, str]] = set()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with anyio.fail_after(120):
        for round_number in range(ROUNDS):
            lines = 0
            rest = b""
            async with await anyio.open_process(
                [sys.executable, "-c", _CHILD, str(path), str(round_number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            ) as child:
                assert child.stdout is not None
                async for chunk in child.stdout:
                    *whole, rest = (rest + chunk).split(b"\n")
                    told |= {(line.split()[0].decode(), line.split()[1].decode()) for line in whole}
                    lines += len(whole)
                    if lines > 40 + 137 * round_number:
                        break
                child.send_signal(signal.SIGKILL)
                async for chunk in child.stdout:
                    *whole, rest = (rest + chunk).split(b"\n")
                    told |= {(line.split()[0].decode(), line.split()[1].decode()) for line in whole}
            assert lines, "the child wrote nothing"
            async with Store.open(path) as store:
                assert store.note is None
                kept = await store.read(all_steps)
                assert told <= {(writer, step) for writer, steps in kept.items() for step in steps}
                for number, last in await store.read(places):
                    assert number == last
                assert await store.integrity() == []
