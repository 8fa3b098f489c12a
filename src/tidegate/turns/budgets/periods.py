"""The times that budgets are counted in: hours, days and months of UTC's calendar, and for ever.

Guarantee: windows of one kind follow each other without a gap, and each begins at the beginning of an hour.
"""

from datetime import UTC, datetime
from math import inf
from typing import Literal

HOUR, DAY = 3600, 86400

Each = Literal["hour", "day", "month", "total"]


def window(each: Each, now: float) -> tuple[float, float]:
    """When the window that `now` is in began, and when the next one begins: never, after `total`."""
    if each == "total":
        return 0.0, inf
    if each == "month":
        first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        year, month = divmod(first.year * 12 + first.month, 12)
        return first.timestamp(), first.replace(year=year, month=month + 1).timestamp()
    length = HOUR if each == "hour" else DAY
    start = now // length * length
    return start, start + length
