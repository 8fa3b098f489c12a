"""The gateway is killed with SIGKILL at random points under load, fifty times in one run."""

import os
import random
from pathlib import Path

import pytest

from bench import crash
from bench.audit import audit
from bench.subjects import Gateway, ScriptedModel
from bench.suite.kill import RESUMES
from bench.suite.prefix import TOOL_CALL, TOOLS

KILLS = 50
SESSIONS = 10


@pytest.mark.slow
def test_fifty_kills_lose_no_accepted_message_and_repeat_no_step(tmp_path: Path) -> None:
    """F4, S14, S16, S17, S32, P01, P02: each accepted message belongs to exactly one turn, each turn has one answer
    unless a newer message stopped it, no committed step is repeated, a retry under the same key finds the same turn,
    one-shot calls too, and the model never sees an orphan.
    `TIDEGATE_SEED` repeats the same choices."""
    seed = int(os.environ.get("TIDEGATE_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"TIDEGATE_SEED={seed}")
    with ScriptedModel(tmp_path / "model") as model:
        gateway = Gateway(tmp_path / "home", model.url, limits={"resumes": RESUMES}, tools=TOOLS)
        load = crash.Load(sessions=SESSIONS, kills=KILLS, seed=seed, tool=TOOL_CALL)
        run = crash.run(gateway, load, print)
        findings = run.problems + audit(gateway.database, run.sent, model.call("GET", "/stats"))
    assert run.kills == KILLS
    assert run.kills_early > 0
    assert {one.kind for one in run.sent if one.accepted} == set(crash.KINDS)
    assert any(one.tries > 1 for one in run.sent)
    assert any(one.stopped for one in run.sent)
    assert any(one.accepted and not one.key for one in run.sent)
    assert findings == [], f"TIDEGATE_SEED={seed}"
