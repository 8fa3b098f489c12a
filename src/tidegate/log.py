"""Logging with names for what varies: `log.warning("a tool broke", tool=name, session=session)`.

Guarantee: the sentence stays the same and each value has a name, so that lines can be searched, counted and redacted by
name. Everything goes the way of the standard library's `logging`, as what libraries log does; who writes it out, where
and how is set once for the process (`tidegate.security.log_setup`).
"""

import logging
from typing import Any

VALUES = "values"
"""Where a record of `logging` carries them."""


class Log:
    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **values: Any) -> None:
        self._log(logging.DEBUG, event, values)

    def info(self, event: str, /, **values: Any) -> None:
        self._log(logging.INFO, event, values)

    def warning(self, event: str, /, **values: Any) -> None:
        self._log(logging.WARNING, event, values)

    def error(self, event: str, /, **values: Any) -> None:
        self._log(logging.ERROR, event, values)

    def exception(self, event: str, /, **values: Any) -> None:
        """With the traceback of what is being handled, or of the exception given as `exc_info`."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            error = values.pop("exc_info", None)
            self._logger.log(level, "%s", event, exc_info=error, extra={VALUES: values})
