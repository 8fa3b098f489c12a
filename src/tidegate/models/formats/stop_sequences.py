"""Stop sequences that cannot be sent in a provider's format. The gateway cuts the answer at them.

Text is passed on as it arrives, except for a tail that could be the start of a stop sequence. The first stop sequence
and everything after it are dropped. Each attempt at a model step has its own cutter.
"""

from collections.abc import Callable

import msgspec

from tidegate.values import Message


class StopCutter:
    __slots__ = ("_held", "_is_cut", "_on_text", "_stops")

    def __init__(self, stops: tuple[str, ...], on_text: Callable[[str], None]) -> None:
        self._stops = stops
        self._on_text = on_text
        self._held = ""
        self._is_cut = False

    def __call__(self, text: str) -> None:
        """Processes the next piece of the answer's text."""
        if self._is_cut:
            return
        text = self._held + text
        end = _first(text, self._stops)
        self._is_cut = end is not None
        held = 0 if end is not None else _possible_beginning(text, self._stops)
        shown = text[:end] if end is not None else text[: len(text) - held]
        self._held = text[len(text) - held :]
        if shown:
            self._on_text(shown)

    def finish(self, answer: Message) -> Message:
        """Returns the answer, cut before the first stop sequence. A cut answer has no tool calls."""
        end = _first(answer.text, self._stops)
        if end is not None:
            return msgspec.structs.replace(answer, text=answer.text[:end], calls=(), carried=(), finish="stop")
        if self._held:
            self._on_text(self._held)
        return answer


def _first(text: str, stops: tuple[str, ...]) -> int | None:
    return min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)


def _possible_beginning(text: str, stops: tuple[str, ...]) -> int:
    """Returns the number of characters at the end of the text that may be the beginning of a stop sequence."""
    longest = min(len(text), max(map(len, stops)) - 1)
    tails = (text[len(text) - size :] for size in range(longest, 0, -1))
    return next((len(tail) for tail in tails if any(stop.startswith(tail) for stop in stops)), 0)
