"""`kill -9` while a sandbox starts: the number of orphan processes, and the time of a start."""

import os

from bench import orphans
from bench.report import Figure
from bench.suite import Bench
from tidegate.workspaces.processes.children import find_program

SEED = 12
NOBODY = 65534
"""If run as root, the kills are repeated as this user, for whom bwrap sets up a sandbox in other steps."""


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway" or find_program("bwrap") is None:
        return []
    users = {"": None, ", as an ordinary user": NOBODY} if os.geteuid() == 0 else {"": None}
    return [figure for title, user in users.items() for figure in _figures(bench, title, user)]


def _figures(bench: Bench, title: str, user: int | None) -> list[Figure]:
    kills = bench.scale.sandbox_kills
    bench.say(f"kill -9: {kills} kills while a sandbox starts{title}")
    done = orphans.run("sandbox", kills, SEED, user)
    name = "" if user is None else "_user"
    return [
        Figure(
            name=f"orphans{name}",
            title=f"sandboxes left behind after {kills} kills during their start{title}",
            unit="",
            value=float(done.left + done.groups),
            goal="0",
            met=done.left + done.groups == 0,
            note=f"{done.left} with processes, {done.groups} control groups",
            detail={"found": done.found, "seed": SEED},
        ),
        Figure(name=f"sandbox_start{name}", title=f"start of a sandbox{title}", unit="ms", value=done.start * 1000),
    ]
