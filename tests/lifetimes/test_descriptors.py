"""The process's descriptors and their reserve."""

import os
import resource
from collections.abc import Iterator

import pytest

from tidegate.lifetimes import Descriptors
from tidegate.lifetimes.descriptors import RESERVE


@pytest.fixture(autouse=True)
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_reserve_can_be_used_within_its_block_only() -> None:
    """L08, L21: nested blocks lift the limit once."""
    descriptors = Descriptors()
    descriptors.keep(1000)
    limit = soft()
    assert descriptors.limit == limit
    with descriptors.reserve(), descriptors.reserve():
        assert soft() == limit + RESERVE
        assert descriptors.limit == limit
    assert soft() == limit
    descriptors.lift()
    with descriptors.reserve():
        pass
    assert soft() == limit + RESERVE


def test_a_descriptor_of_the_reserve_can_be_opened_when_no_other_is_left() -> None:
    """L08: and the number of open ones can be told then."""
    descriptors = Descriptors()
    descriptors.keep(1000)
    open = descriptors.open
    made = [os.dup(0)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (made[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.close(made.pop())
        with pytest.raises(OSError, match="Too many open files"):
            made.append(os.dup(0))
        with descriptors.reserve():
            made.append(os.dup(0))
        assert descriptors.open == open + 1
    finally:
        for each in made:
            os.close(each)


def test_a_limit_that_the_operator_changes_meanwhile_is_left_alone() -> None:
    """L08: the reserve counts from the new one."""
    descriptors = Descriptors()
    descriptors.keep(1000)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with descriptors.reserve():
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    assert soft() == descriptors.limit == 500
    with descriptors.reserve():
        assert soft() == 500 + RESERVE
    assert soft() == 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with descriptors.reserve():
        assert soft() == hard
    assert soft() == hard
