"""Fixtures for every test: asyncio only, nothing left behind, no blocking call on the loop."""

import inspect
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.project import quick
from tests.project.blocking import BlockingGuard
from tests.project.groups import remove_stray
from tests.project.leaks import LoopWatch, ProcessWatch, Scratch

SOURCE = Path(__file__).resolve().parent.parent / "src" / "tidegate"

_scratch = pytest.StashKey[Scratch]()

# CI machines differ in speed, and a run must leave no files behind.
settings.register_profile("default-tests", database=None, deadline=None, derandomize=True)
settings.register_profile(quick.PROFILE, settings.get_profile("default-tests"), max_examples=quick.EXAMPLES)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the tests that tests/project/quick.py selects")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(quick.PROFILE if config.option.quick else "default-tests")
    scratch = config.stash[_scratch] = Scratch.make()
    if config.option.basetemp is None:
        config.option.basetemp = str(scratch.given)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_scratch].remove()
    remove_stray()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.option.quick and quick.is_left_out(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.quick:
        items[:], others = quick.select(items)
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def blocking_guard() -> Iterator[BlockingGuard]:
    """Raises if our own code would block the event loop."""
    with BlockingGuard(SOURCE).installed() as guard:
        yield guard


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, blocking_guard: BlockingGuard) -> Iterator[list[str]]:
    """Fails a test that leaves something behind, and names it. Things made earlier by broader fixtures may stay."""
    watch = ProcessWatch(request.config.stash[_scratch].watched)
    left: list[str] = []
    yield left
    left += watch.end()
    blocked, blocking_guard.seen = blocking_guard.seen, []
    if left:
        pytest.fail("left behind by this test:\n  " + "\n  ".join(left), pytrace=False)
    if blocked:
        pytest.fail("\n".join(map(str, blocked)), pytrace=False)


@pytest.fixture
async def nothing_left_in_loop(nothing_left: list[str]) -> AsyncIterator[None]:
    watch = LoopWatch()
    yield
    nothing_left += await watch.end()


@pytest.fixture(autouse=True)
def watched_loop(request: pytest.FixtureRequest, nothing_left: list[str]) -> None:
    """Checks the loop of every asynchronous test from inside, before and after its other fixtures."""
    function = getattr(request.node, "obj", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if inspect.iscoroutinefunction(inner):
        request.getfixturevalue("nothing_left_in_loop")
