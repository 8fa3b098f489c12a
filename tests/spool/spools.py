"""Helpers for the tests of the spool."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidegate.spool import OutputRecorder, Spool
from tidegate.store import Store

SESSION = "s_1"
BYTES, LINES = 2000, 40
QUOTA = 1_000_000
ID = re.compile(r"sp_\w+")
WAIT = 60
"""Seconds before a test that waits for something gives up; nothing asserts on how long it took."""


def spool_of(root: Path, store: Store, **options: Any) -> Spool:
    return Spool(root, store, **{"excerpt_bytes": BYTES, "excerpt_lines": LINES, "quota": QUOTA, **options})


async def recorded(recorder: OutputRecorder, pieces: Iterable[bytes]) -> str:
    async with recorder:
        for piece in pieces:
            await recorder.write(piece)
        return await recorder.finish()


def files(spool: Spool) -> dict[str, bytes]:
    """The files of the spool by name."""
    return {path.name: path.read_bytes() for path in spool.root.rglob("*") if path.is_file()}


def in_child(*arguments: str, namespace: bool = False) -> dict[str, str]:
    """Runs `tests.spool.refusing_disk` in a child process. In a namespace, the child may mount file systems."""
    wrapped = ["unshare", "--user", "--map-root-user", "--mount"] if namespace else []
    done = subprocess.run(
        [*wrapped, sys.executable, "-m", "tests.spool.refusing_disk", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def can_mount() -> bool:
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True, timeout=WAIT).returncode == 0
