"""The audit log of a gateway that is killed with SIGKILL at random points while its agents write files."""

import os
import random
from collections import Counter
from pathlib import Path

import apsw
import pytest

from bench import crash
from bench.audit import StoreRows
from bench.subjects import Gateway, ScriptedModel
from bench.suite.kill import RESUMES

KILLS = 10
SESSIONS = 6
CALL = '[tool write_file {"path": "tide.txt", "content": "high"}]'


@pytest.mark.slow
def test_kills_leave_one_beginning_and_one_end_of_each_call(tmp_path: Path) -> None:
    """X24, F4: each call with a result has a row for its start, unless it did not run, and a row for its end; no row is
    lost, duplicated or without a call in the transcript. `TIDEGATE_SEED` repeats the same choices."""
    seed = int(os.environ.get("TIDEGATE_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"TIDEGATE_SEED={seed}")
    with ScriptedModel(tmp_path / "model") as model:
        gateway = Gateway(tmp_path / "home", model.url, limits={"resumes": RESUMES}, tools=("files",))
        run = crash.run(gateway, crash.Load(sessions=SESSIONS, kills=KILLS, seed=seed, tool=CALL), print)
    assert (run.kills, run.problems) == (KILLS, [])
    books = StoreRows(gateway.database)
    results = {f"write_file {row.turn} {row.step}": row.text for row in books.rows if row.role == "tool"}
    db = apsw.Connection(str(gateway.database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = Counter(db.execute("SELECT subject, outcome = 'begun' FROM audit WHERE kind = 'tool'"))
        ids = [id for (id,) in db.execute("SELECT id FROM audit ORDER BY id")]
    finally:
        db.close()
    assert set(rows.values()) == {1} and ids == list(range(1, len(ids) + 1))
    begun, over = ({subject for subject, first in rows if bool(first) is which} for which in (True, False))
    assert begun == over, "a call that was begun has ended, and the other way round"
    ran = {subject for subject, text in results.items() if not text.startswith("Not run")}
    assert ran and ran == {subject for subject in begun if subject.split()[1] in books.turns}, f"TIDEGATE_SEED={seed}"
