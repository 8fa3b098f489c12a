"""Parsing and formatting of time spans (`/model NAME for 2h`).

An invalid span is refused with an error that shows the format. A point in time is shown both in the gateway's time zone
and as the time left, so users in any time zone can understand it.
"""

import time

from tidegate.config import Duration, InvalidValue
from tidegate.errors import Refused

_FOR = "for"
_TYPE = Duration(at_least=1.0)
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))


def split(command: str, words: str) -> tuple[str, float | None]:
    """Splits `CHOICE for TIME` into the choice and the time in seconds, or None if the choice applies until the end of
    the conversation."""
    chosen, _, rest = words.partition(" ")
    rest = rest.strip()
    if not rest:
        return chosen, None
    word, _, text = rest.partition(" ")
    if word != _FOR:
        how = f"{chosen} for {rest}" if _seconds(rest) else "NAME for 2h"
        raise Refused(f"To choose for a limited time, use /{command} {how}.", code="bad_argument")
    seconds = _seconds(text)
    if seconds is None:
        raise Refused(f"{text[:100]!r} is not a time span; use 30m, 2h or 7d, for example.", code="bad_argument")
    if chosen == "default":
        raise Refused(f"The default cannot have a time limit; use /{command} default.", code="bad_argument")
    return chosen, seconds


def _seconds(text: str) -> float | None:
    try:
        return _TYPE.read(text)
    except InvalidValue:
        return None


def span(seconds: float) -> str:
    """Formats a time span, such as `1.5 hours`."""
    unit, length = next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])
    count = round(seconds / length, 1)
    return f"{count:g} {unit}" if count == 1 else f"{count:g} {unit}s"


def until(expires: float, now: float) -> str:
    return f"until {time.strftime('%Y-%m-%d %H:%M', time.localtime(expires))} (in {span(expires - now)})"
