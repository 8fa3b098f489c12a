"""What has been logged already.

Guarantee: the same thing is told once by a process, for as long as it is among the last `REMEMBERED`; threads may tell.
"""

import threading

from tidegate.lifetimes import BoundedCache
from tidegate.log import Log

REMEMBERED = 512
"""More things than an operator would mend; what is forgotten is told again."""


class LogOnce:
    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._before: BoundedCache[tuple[str, str], bool] = BoundedCache("told of skills", cap=REMEMBERED)

    def warn(self, event: str, path: str, reason: str) -> None:
        if self._is_new(path, reason):
            self._log.warning(event, path=path, reason=reason)

    def inform(self, event: str, path: str, reason: str) -> None:
        if self._is_new(path, reason):
            self._log.info(event, path=path, reason=reason)

    def _is_new(self, path: str, reason: str) -> bool:
        with self._lock:
            known = self._before.get((path, reason)) is not None
            self._before.put((path, reason), True)
        return not known
