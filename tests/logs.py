"""Capturing log lines in tests."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.log import VALUES

OWN = "tidegate"


@contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Captures our own log lines of every level: their values with `event` and `level`. They are not passed on."""
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            named = {"event": record.getMessage(), "level": record.levelname.lower(), "exc_info": record.exc_info}
            lines.append({**named, **getattr(record, VALUES, {})})

    logger, keep = logging.getLogger(OWN), Keep()
    before = (logger.level, logger.propagate)
    logger.addHandler(keep)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(keep)
        logger.setLevel(before[0])
        logger.propagate = before[1]
