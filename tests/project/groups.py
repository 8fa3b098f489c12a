"""Removal of control groups left by killed gateways of tests, in whose homes no gateway will ever start again.

Only empty groups whose creator is no longer alive are removed.
"""

import contextlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"tidegate-[0-9a-f]{16}-(\d+)-\w+")


def remove_stray() -> None:
    from tidegate.workspaces.kernel.cgroup_hierarchy import (
        trees,  # imported at the end of a run, so that it does not change what tests import
    )

    for tree in trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()):
        with contextlib.suppress(OSError):
            for folder in list(tree.folder.iterdir()):
                named = _NAME.fullmatch(folder.name)
                if named and not Path("/proc", named[1]).exists():
                    _remove(folder)


def _remove(folder: Path) -> None:
    for here, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # not empty, or already removed
            Path(here).rmdir()
