"""Logging with named values: `log.warning("a tool failed", tool=name, session=session)`.

The message is a constant sentence and every value has a name, so log lines can be searched, counted and redacted by
these names. Records go through the standard library's `logging`, like those from third-party libraries.
`tidegate.security.log_setup` configures the output once per process.
"""

import logging
from typing import Any

VALUES = "values"
"""The attribute of a log record that contains the values."""


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
        """Logs an error with the traceback of the current exception, or of `exc_info` if it is passed."""
        self._log(logging.ERROR, event, {"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            error = values.pop("exc_info", None)
            self._logger.log(level, "%s", event, exc_info=error, extra={VALUES: values})
