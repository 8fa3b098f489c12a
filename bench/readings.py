"""Process readings from the kernel, and basic statistics for the figures. Linux only; keeps nothing open."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KB = 1024
SOCKET_STATES = {
    "01": "established", "02": "syn_sent", "03": "syn_recv", "04": "fin_wait1", "05": "fin_wait2", "06": "time_wait",
    "07": "close", "08": "close_wait", "09": "last_ack", "0A": "listen", "0B": "closing",
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Resident bytes: the total, and the process's own part (anonymous pages, including swapped ones)."""

    rss: int
    anon: int

    def __sub__(self, other: "Memory") -> "Memory":
        return Memory(self.rss - other.rss, self.anon - other.anon)


def memory(pid: int) -> Memory:
    found = {"VmRSS": 0, "RssAnon": 0, "VmSwap": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * KB
    return Memory(rss=found["VmRSS"], anon=found["RssAnon"] + found["VmSwap"])


def reset_peak(pid: int) -> None:
    """Restart the measurement of `peak_memory`."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_memory(pid: int) -> int:
    """The most resident bytes since the process started, or since `reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KB
    return 0


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, including ended ones, from its CPU clock. The clock has
    nanoseconds; the ticks of /proc/PID/stat are ten milliseconds."""
    return time.clock_gettime((~pid << 3) | 2)


def census(pid: int, folder: Path | None = None) -> dict[str, int]:
    """A process's resources, counted from outside: threads, descriptors by kind, sockets by state, children, and files
    in its temporary folder."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    counts = {"threads": len(tasks), "children": 0, "descriptors": 0}
    inodes: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        counts["descriptors"] += 1
        kind = target.partition(":")[0] if not target.startswith("/") else "file"
        counts[f"descriptors {kind}"] = counts.get(f"descriptors {kind}", 0) + 1
        if kind == "socket":
            inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for row in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = row.split()
            if fields[9] in inodes:
                state = f"sockets {SOCKET_STATES.get(fields[3], fields[3])}"
                counts[state] = counts.get(state, 0) + 1
    for task in tasks:
        path = task / "children"
        counts["children"] += len(path.read_text().split()) if path.exists() else 0
    if folder is not None:
        counts["temporary files"] = sum(1 for _ in folder.rglob("*"))
    return counts


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values are, with linear interpolation."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """The spread of repeats of one measurement: (largest - smallest) / median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


@dataclass(frozen=True)
class Line:
    """A least-squares line through points; `noise` is the standard deviation of the residuals."""

    slope: float
    start: float
    noise: float


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    square = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / square if square else 0.0
    start = mean_y - slope * mean_x
    left = sum((y - start - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return Line(slope, start, (left / max(1, count - 2)) ** 0.5)
