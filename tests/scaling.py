"""How the time of a function grows with its input: a ratio of two times that were taken side by side."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 9
TIMES = 4
LINEAR = 10.0
"""An input that is four times as long takes four times as long where that is linear, and sixteen times where it is
quadratic."""


def growth(work: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    """How many times longer an input takes that is `TIMES` the size."""
    return ratio(work, make(size), make(TIMES * size))


def ratio(work: Callable[[T], object], usual: T, hostile: T) -> float:
    """How many times longer the second input takes, the best of each counted. It is the
    processor's time, so that a busy machine makes no difference."""
    best = [float("inf")] * 2
    for _ in range(ATTEMPTS):
        for place, given in enumerate((usual, hostile)):
            began = time.thread_time()
            work(given)
            best[place] = min(best[place], time.thread_time() - began)
    return best[1] / best[0]
