"""Control groups that killed gateways of tests have left behind, whose homes no gateway will ever start in again.

Guarantee: only groups whose maker is not alive any more and in which nothing is are removed.
"""

import contextlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"tidegate-[0-9a-f]{16}-(\d+)-\w+")


def remove_stray() -> None:
    from tidegate.workspaces.kernel.cgroup_hierarchy import (
        trees,  # at the end of a run, so that tests load what they load
    )

    for tree in trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()):
        with contextlib.suppress(OSError):
            for folder in list(tree.folder.iterdir()):
                named = _NAME.fullmatch(folder.name)
                if named and not Path("/proc", named[1]).exists():
                    _remove(folder)


def _remove(folder: Path) -> None:
    for here, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # something is in it, or somebody else was quicker
            Path(here).rmdir()
