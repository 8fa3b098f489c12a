"""`kill -9` anywhere: a gateway under load is killed at random points, then its store is audited."""

from bench import crash
from bench.audit import audit
from bench.report import Figure
from bench.subjects import Gateway
from bench.suite import Bench
from bench.suite.prefix import TOOL_CALL, TOOLS

SEED = 9
RESUMES = 1000
"""The limit on resumes is raised, because here the gateway is killed from outside, not by a turn."""


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    scale = bench.scale
    bench.say(f"kill -9: {scale.kills} kills under load")
    bench.model.call("POST", "/reset")
    gateway = Gateway(bench.place("killed"), bench.model.url, limits={"resumes": RESUMES}, tools=TOOLS)
    done = crash.run(gateway, crash.Load(scale.crash_sessions, scale.kills, SEED, TOOL_CALL), bench.say)
    findings = done.problems + audit(gateway.database, done.sent, bench.model.call("GET", "/stats"))
    accepted = sum(one.accepted for one in done.sent)
    return [
        Figure(
            name="kill",
            title=f"lost or repeated in {done.kills} × kill -9",
            unit="",
            value=float(len(findings)),
            goal="0",
            met=not findings,
            note=f"{accepted:,} messages accepted, {done.kills_early} kills during start",
            detail={"findings": findings, "seed": SEED},
        )
    ]
