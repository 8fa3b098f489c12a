"""Growth of a function's running time with its input: a ratio of two times measured side by side."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 9
TIMES = 4
LINEAR = 10.0
"""An input of four times the length takes four times as long if the function is linear, and sixteen times if it is
quadratic."""


def growth(work: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    """How many times longer an input of `TIMES` the size takes."""
    return ratio(work, make(size), make(TIMES * size))


def ratio(work: Callable[[T], object], usual: T, hostile: T) -> float:
    """How many times longer the second input takes, by the best time of each. It is processor time, so a busy machine
    makes no difference."""
    best = [float("inf")] * 2
    for _ in range(ATTEMPTS):
        for place, given in enumerate((usual, hostile)):
            began = time.thread_time()
            work(given)
            best[place] = min(best[place], time.thread_time() - began)
    return best[1] / best[0]
