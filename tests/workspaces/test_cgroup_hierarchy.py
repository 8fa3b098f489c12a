"""The kernel's names for control groups, in both versions."""

from pathlib import Path

import pytest

from tidegate.workspaces.backends.interface import SandboxLimits
from tidegate.workspaces.kernel.cgroup_hierarchy import CgroupTree, counter, settings, trees

LIMITS = SandboxLimits(memory_bytes=1000, processes=40, disk_bytes=1, file_bytes=1, cpu_seconds=1)

SERVICE = "0::/system.slice/tidegate.service\n"
V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
V1 = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
OWN = "9:name=systemd:/a\n8:pids:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/a\n"
CONTAINER = """700 690 0:28 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory
701 690 0:29 /docker/abc /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids
"""


@pytest.mark.parametrize(
    ("cgroup", "mounts", "expected"),
    [
        (SERVICE, V2, [(2, "/sys/fs/cgroup/system.slice/tidegate.service", ("pids", "memory"))]),
        ("0::/\n", V2, [(2, "/sys/fs/cgroup", ("pids", "memory"))]),
        (OWN, V1, [(1, "/sys/fs/cgroup/pids", ("pids",)), (1, "/sys/fs/cgroup/memory/jobs/7", ("memory",))]),
        (
            "5:memory:/docker/abc\n4:pids:/docker/abc/inner\n",
            CONTAINER,
            [(1, "/sys/fs/cgroup/memory", ("memory",)), (1, "/sys/fs/cgroup/pids/inner", ("pids",))],
        ),
        ("5:memory:/elsewhere\n4:pids:/docker/abcd\n", CONTAINER, []),
        ("0::/../beside\n", V2.replace(" / /sys", " /user.slice /sys"), []),
        ("0::/../beside\n", V2, []),
        ("3:cpu:/\n0::/\n", "", []),
        ("", V2, []),
    ],
    ids=["service", "root", "version 1", "container", "not shown", "outside", "above", "no mount", "no group"],
)
def test_a_process_finds_its_cgroup_hierarchies(
    cgroup: str, mounts: str, expected: list[tuple[int, str, tuple[str, ...]]]
) -> None:
    """L14: version 1 where it has our controllers, otherwise version 2."""
    found = trees(cgroup, mounts)
    assert [(tree.version, str(tree.folder), tree.controllers) for tree in found] == expected


def test_this_process_is_in_the_hierarchies_it_finds() -> None:
    for tree in trees(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()):
        assert isinstance(tree, CgroupTree) and (tree.folder / "cgroup.procs").exists()


@pytest.mark.parametrize(
    ("version", "controller", "written", "counted"),
    [
        (1, "pids", {"pids.max": "40"}, ("pids.events", "max")),
        (2, "pids", {"pids.max": "40"}, ("pids.events", "max")),
        (
            1,
            "memory",
            {"memory.limit_in_bytes": "1000", "memory.memsw.limit_in_bytes": "1000"},
            ("memory.oom_control", "oom_kill"),
        ),
        (2, "memory", {"memory.max": "1000", "memory.swap.max": "0"}, ("memory.events", "oom_kill")),
    ],
)
def test_each_limit_has_its_files(
    version: int, controller: str, written: dict[str, str], counted: tuple[str, str]
) -> None:
    """L14: swap counts as memory, where the kernel supports it."""
    made = settings(version, controller, LIMITS)
    assert {setting.file: setting.value for setting in made} == written
    assert [setting.needed for setting in made] == [True, False][: len(made)]
    assert counter(version, controller) == counted
