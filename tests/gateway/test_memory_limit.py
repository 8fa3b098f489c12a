"""How much memory the process may take: the kernel's files, written by the test."""

from pathlib import Path

import pytest

from tidegate.gateway.process_memory.memory_limit import SHARE, MemoryLimit

GIB = 1 << 30


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": f"{GIB}\n"}, GIB),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{GIB}\n"}, GIB),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{GIB}\n"}, GIB),
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": f"{GIB}\n"}, GIB),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/a/memory.high": f"{GIB}\n",
            },
            GIB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,memory:/box\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{GIB}\n",
            },
            GIB,
        ),
    ],
)
def test_the_ceiling_is_a_share_of_the_smallest_limit_of_the_kernel(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    """P15: of the machine, or of a control group of either version, wherever above the process the limit is set."""
    _write(tmp_path, **files)
    assert MemoryLimit(None, root=tmp_path, machine=8 * GIB).bytes() == int(expected * SHARE)
    assert MemoryLimit(12345, root=tmp_path).bytes() == 12345, "what the operator says holds"


def test_a_changed_limit_takes_effect(tmp_path: Path) -> None:
    """P15: no restart is needed."""
    ceiling = MemoryLimit(None, root=tmp_path, machine=8 * GIB)
    _write(tmp_path, **{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": f"{2 * GIB}\n"})
    before = ceiling.bytes()
    _write(tmp_path, **{"sys/fs/cgroup/a/memory.max": f"{GIB}\n"})
    assert before == 2 * ceiling.bytes()


def test_a_shortage_is_read_from_the_process_group_or_from_the_machine(tmp_path: Path) -> None:
    """P15: a neighbour's shortage is not ours where the kernel can tell them apart."""
    ceiling = MemoryLimit(None, root=tmp_path)
    assert ceiling.stalled() == 0.0
    lines = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=90.00 avg60=0.00 avg300=0.00 total=1\n"
    _write(tmp_path, **{"proc/self/cgroup": "0::/a\n", "proc/pressure/memory": lines.format("33.50")})
    assert ceiling.stalled() == 33.5
    _write(tmp_path, **{"sys/fs/cgroup/a/memory.pressure": lines.format("1.25")})
    assert ceiling.stalled() == 1.25


def test_this_machine_has_a_memory_ceiling() -> None:
    """P15: the real files can be read."""
    assert 1 << 20 < MemoryLimit(None).bytes() < 1 << 60
    assert 0.0 <= MemoryLimit(None).stalled() <= 100.0
