"""What is logged, by anyone in the process, reaches the stream redacted, bounded and one line at a time."""

import io
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidegate.config import LogSettings
from tidegate.log import Log
from tidegate.security import Redactor, Secret, configure_logging, make_key
from tidegate.security.log_setup import KINDS, REPEAT_SECONDS, REPEATS

CANARY = 'c4nary/ü"Zq7\\secret+value'
FORMATS = ("text", "json")


class Configured:
    """A configured log that can be read."""

    def __init__(self, **settings: Any) -> None:
        self.stream = io.StringIO()
        self.clock = Clock()
        redactor = Redactor([Secret(CANARY)])
        self.undo = configure_logging(LogSettings(**settings), redactor, self.stream, clock=self.clock)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@contextmanager
def logging_as(format: str) -> Iterator[Configured]:
    """Configured within the test's own call: before it, pytest has not yet added its handlers."""
    made = Configured(format=format, level="debug")
    try:
        yield made
    finally:
        made.undo()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def assert_clean(text: str) -> None:
    for form in (CANARY, json.dumps(CANARY)[1:-1], json.dumps(CANARY, ensure_ascii=False)[1:-1], repr(CANARY)[1:-1]):
        assert form not in text
    assert "c4nary" not in text


class Odd:
    def __repr__(self) -> str:
        return f"Odd({CANARY})"


def fail() -> None:
    local = CANARY
    try:
        raise OSError(5, local)
    except OSError as error:
        raise RuntimeError(f"while using {local}") from error


@pytest.mark.parametrize("format", FORMATS)
def test_no_secret_is_logged_through_our_own_log(format: str) -> None:
    """X15, X16: events, values, nested values, bytes, objects, tracebacks with their causes."""
    with logging_as(format) as log:
        logger = Log("tidegate.test")
        logger.info(f"event {CANARY}", value=CANARY, nested={"a": [CANARY, {"b": (CANARY,)}]}, raw=CANARY.encode())
        logger.warning("object", it=Odd(), secret_itself=Secret(CANARY), **{CANARY: 1})
        try:
            fail()
        except RuntimeError as error:
            logger.exception("failed")
            logger.error("failed", exc_info=error)
            logger.error("failed", error=error)
            logger.error("group", exc_info=ExceptionGroup(CANARY, [error, KeyError(CANARY)]))
        assert_clean(log.text)
        assert log.text.count("Traceback") >= 6
        assert "while using [hidden]" in log.text


@pytest.mark.parametrize("format", FORMATS)
def test_no_secret_is_logged_through_a_library(format: str) -> None:
    """X15, X16: the standard library's loggers end in the same sink."""
    with logging_as(format) as log:
        logger = logging.getLogger("some.library")
        logger.warning("url %s headers %r", CANARY, {"k": CANARY})
        logger.error("caller's key %s", make_key())
        logger.error("wrong format %d", CANARY)
        try:
            fail()
        except RuntimeError:
            logger.exception("library failed with %s", CANARY)
        assert_clean(log.text)
        assert "some.library" in log.text
        assert "tg_" not in log.text
        assert "could not be formatted" in log.text


def test_a_line_of_json_holds_the_event_and_its_values() -> None:
    log = Configured(format="json")
    try:
        Log("tidegate.test").info(
            "turn ended", turn="t_1", steps=2, odd={1: 2.5}, huge=10**30, bad="\ud800", nan=float("nan")
        )
        (line,) = log.lines()
    finally:
        log.undo()
    assert (line["event"], line["level"], line["turn"], line["steps"]) == ("turn ended", "info", "t_1", 2)
    assert line["odd"] == {"1": 2.5}
    assert line["huge"] == hex(10**30)
    assert line["timestamp"].endswith("Z")


def test_a_line_of_text_can_be_read_by_people() -> None:
    log = Configured(format="text")
    try:
        Log("tidegate.test").info("turn ended", turn="t_1", steps=2, text="two words")
    finally:
        log.undo()
    assert log.text.rstrip("\n").split(" ", 1)[1] == 'info    turn ended turn=t_1 steps=2 text="two words"'


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_logged_can_pose_as_another_line(format: str) -> None:
    """X16: line breaks and terminal codes of strangers are escaped."""
    with logging_as(format) as log:
        evil = "x\n2026-01-01T00:00:00Z error forged\r\x1b[2J\u2028\u202e"
        Log("tidegate.test").info(evil, value=evil)
        logging.getLogger("lib").warning(evil)
        assert len(log.text.splitlines()) == 2
        assert "\x1b" not in log.text
        Log("tidegate.test").error("failed", exc_info=RuntimeError(evil))
        assert not any(line.startswith("2026-01-01T00:00:00Z error forged") for line in log.text.splitlines())


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_that_is_logged_raises_or_hides_what_a_line_is(format: str) -> None:
    """L31, X16: values that cannot be shown, names that a line has already, a library's odd ways."""
    with logging_as(format) as log:
        own, library = Log("tidegate.test"), logging.getLogger("lib")
        own.warning("honest", level=None, timestamp="never", logger=["x"])
        getattr(own, "warning")("named", event="forged")  # noqa: B009
        own.warning("hostile", value=Hostile())
        library.warning("odd", extra={"values": 3})
        library.warning("%s", Hostile())
        library.warning(Hostile())
        library.error("without one", exc_info=False)
        own.info("still there")
        text = log.text
    for word in ("honest", "named", "hostile", "odd", "could not be formatted", "without one", "still there"):
        assert word in text
    assert "event_" in text and "level_" in text
    assert text.count("a log line could not be formatted (RuntimeError)") == 1


def test_a_secret_that_only_the_finished_line_holds_is_hidden() -> None:
    """X15: put together from a name and a value, neither of which is one."""
    stream = io.StringIO()
    undo = configure_logging(LogSettings(format="text"), Redactor([Secret("turn=t_123 steps")]), stream)
    try:
        Log("tidegate.test").info("ended", turn="t_123", steps=2)
    finally:
        undo()
    assert "t_123" not in stream.getvalue() and "[hidden]" in stream.getvalue()


def test_a_long_line_of_what_might_be_a_secret_is_looked_through_in_bounded_time() -> None:
    """L20: each place where one may begin is looked at for a while, and not to the end."""
    short, long = "eyJaaaaaaaa-" * 2_000, "eyJaaaaaaaa-" * 16_000
    redactor = Redactor()
    took = []
    for text in (short, long):
        tries = []
        for _ in range(3):
            began = time.thread_time()
            redactor.text(text)
            tries.append(time.thread_time() - began)
        took.append(min(tries))
    assert took[1] < 40 * max(took[0], 1e-4)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_what_is_below_the_level_is_not_logged(level: str) -> None:
    log = Configured(format="json", level=level)
    order = ["debug", "info", "warning", "error"]
    try:
        for name in order:
            getattr(Log("tidegate.test"), name)(name)
    finally:
        log.undo()
    assert [line["event"] for line in log.lines()] == order[order.index(level) :]


def test_an_unwritable_stream_blocks_nobody_and_the_loss_is_reported() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Full()
    undo = configure_logging(LogSettings(format="json"), Redactor(), stream)
    try:
        Log("tidegate.test").info("one")
        logging.getLogger("lib").warning("two")
        stream.full = False
        Log("tidegate.test").info("three")
        Log("tidegate.test").info("four")
    finally:
        undo()
    first, *others = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["lines"]) == ("log lines were lost", 2)
    assert [line["event"] for line in others] == ["three", "four"]


def test_undoing_leaves_the_process_as_it_was() -> None:
    root, own = logging.getLogger(), logging.getLogger("tidegate")
    before = (list(root.handlers), root.level, own.level)
    log = Configured(level="debug")
    log.undo()
    log.undo()
    assert (list(root.handlers), root.level, own.level) == before


def test_a_line_that_is_repeated_in_a_tight_loop_is_counted_instead_of_written() -> None:
    """L21: for every logger and all values; other lines are written, and the count follows when the time is over."""
    with logging_as("json") as configured:
        for number in range(20_000):
            Log("tidegate.test").warning("a thing broke", number=number)
            logging.getLogger("library").error("socket %d failed\nat %s", number, CANARY, exc_info=OSError(24, "none"))
        assert len(configured.lines()) == 2 * REPEATS
        Log("tidegate.test").error("a thing broke")
        Log("tidegate.test").warning("another thing broke")
        assert [line["event"] for line in configured.lines()[-2:]] == ["a thing broke", "another thing broke"]
        configured.clock.now += REPEAT_SECONDS
        Log("tidegate.test").warning("a thing broke", number="last")
        counts = {line["event"]: line["repeated"] for line in configured.lines() if "repeated" in line}
        assert counts == {"a thing broke": 20_000 - REPEATS, "socket 19999 failed": 20_000 - REPEATS}
        assert configured.lines()[-1]["number"] == "last"
        assert_clean(configured.text)


def test_counts_of_repeated_lines_are_logged_at_the_end() -> None:
    """L21: a count is never lost with the process."""
    with logging_as("text") as configured:
        for _ in range(REPEATS + 5):
            Log("tidegate.test").warning("a thing broke")
    assert configured.text.splitlines()[-1].endswith("logger=tidegate.test repeated=5 seconds=0")


def test_the_number_of_distinguished_kinds_of_lines_is_bounded() -> None:
    """L04: a logger that makes its words up costs no memory, and the oldest kind is told first."""
    with logging_as("json") as configured:
        for _ in range(REPEATS + 5):
            Log("tidegate.test").warning("the first")
        for number in range(KINDS - 1):
            Log("tidegate.test").warning(f"made up {number}")
        assert not [line for line in configured.lines() if "repeated" in line]
        Log("tidegate.test").warning("one kind too many")
        told = [line for line in configured.lines() if "repeated" in line]
        assert [(line["event"], line["repeated"]) for line in told] == [("the first", 5)]
