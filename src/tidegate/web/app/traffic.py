"""What passed over HTTP, in numbers.

Guarantee: a request pays for being counted with a few additions; the routes are ours, so that the counts are bounded.
"""

from bisect import bisect_left
from collections import Counter

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the buckets of an answer's duration: from a demo model's to that of a long turn."""
OTHER = "other"


class HttpCounters:
    """What passed over HTTP: counted by route and status, chat answers also by duration."""

    __slots__ = ("buckets", "requests", "seconds")

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # lint: allow routes are known, any other is OTHER
        self.buckets = [0] * (len(SECONDS) + 1)
        self.seconds = 0.0

    def answered(self, route: str, status: int) -> None:
        self.requests[route, status] += 1

    def chatted(self, seconds: float) -> None:
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds
