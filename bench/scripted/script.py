"""The script language in user messages, and the answers that scripts describe, for every format.

Pure values: the same request and counters give the same plan.
"""

import json
import re
from collections.abc import Callable

from bench.scripted.interface import Asked

ANSWER = ("The tide", " comes in,", " the gate", " keeps", " the level.")
THOUGHT = ("Water", " finds", " its level.")

NOTE = "[Note from the gateway"
"""The start of a note that the gateway itself adds."""

OBEY = "[obey]"
"""Marks a note whose directives count, because a test has written it."""

STEPS = frozenset({"tool", "together", "badargs", "unknowntool"})
FAULTS = frozenset(
    {
        *("status", "slow", "hold", "hang", "cut", "badjson", "error", "hugeline", "nodone", "close", "html"),
        *("garbled", "usage", "whole"),
    }
)
_OPENING = re.compile(r"\[([a-z]+)")
_json = json.JSONDecoder()


class Directive:
    """`[name word word key=value {json}]`. JSON is kept verbatim."""

    __slots__ = ("name", "options", "words")

    def __init__(self, name: str, items: list[str]) -> None:
        self.name = name
        self.words = [item for item in items if item[:1] == "{" or "=" not in item]
        self.options = dict(item.split("=", 1) for item in items if item[:1] != "{" and "=" in item)

    def number(self, option: str, default: float) -> float:
        return float(self.options.get(option, default))

    def calls(self) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for word in self.words:
            if word[0] == "{" and pairs:
                pairs[-1] = (pairs[-1][0], word)
            else:
                pairs.append((word, "{}"))
        return pairs

    def pieces(self) -> tuple[str, ...]:
        return tuple(word if n == 0 else " " + word for n, word in enumerate(self.words))


class Plan:
    """One answer: its pieces and its faults. `sequence` is the number of events sent so far, for formats that number
    them. `refused`: the text is marked as a refusal. `stopped_by`: the caller's stop sequence that ended it."""

    __slots__ = ("calls", "faults", "finish", "pieces", "redacted", "refused", "sequence", "stopped_by", "thoughts")

    def __init__(
        self,
        pieces: tuple[str, ...],
        calls: list[tuple[str, str, str]],
        finish: str,
        thoughts: tuple[str, ...] = (),
        *,
        redacted: bool = False,
    ) -> None:
        self.pieces, self.calls, self.finish = pieces, calls, finish
        self.thoughts, self.redacted = thoughts, redacted
        self.refused = False
        self.stopped_by: str | None = None
        self.faults: dict[str, Directive] = {}
        self.sequence = 0

    @property
    def tokens(self) -> int:
        return len(self.pieces) + 8 * len(self.calls) + len(self.thoughts)


def directs(text: str, *, plain: bool) -> bool:
    """Whether a user message can contain directives: one that is only a note of the gateway cannot, unless it has the
    mark OBEY. `plain`: the message is a plain string, which a note never is."""
    return plain or not text.startswith(NOTE) or OBEY in text


def read_script(text: str) -> list[Directive]:
    found: list[Directive] = []
    position = 0
    while opening := _OPENING.search(text, position):
        position = opening.end()
        items: list[str] = []
        while position < len(text) and text[position] != "]":
            if text[position].isspace():
                position += 1
                continue
            end = position
            if text[position] == "{":
                try:
                    _, end = _json.raw_decode(text, position)
                except json.JSONDecodeError:
                    break
            else:
                while end < len(text) and not text[end].isspace() and text[end] != "]":
                    end += 1
            items.append(text[position:end])
            position = end
        if position < len(text) and text[position] == "]":
            found.append(Directive(opening[1], items))
    return found


def plan_of(
    asked: Asked, step: int, call_id: Callable[[int], str], meets: Callable[[Directive, int, int], bool]
) -> Plan:
    """The plan of an answer. `meets(directive, step, place)` decides whether a directive applies now, and counts."""
    script = read_script(asked.text)
    wanted = _wanted(script, step, asked.names)
    calls = [(call_id(n), name, given) for n, (name, given) in enumerate(wanted)]
    pieces: tuple[str, ...] = () if calls else ANSWER
    finish = "tool_calls" if calls else "stop"
    thoughts: tuple[str, ...] = THOUGHT if asked.thinks else ()
    redacted = refused = False
    faults: dict[str, Directive] = {}
    for place, directive in enumerate(script):
        if directive.name == ("saying" if calls else "say"):
            pieces = directive.pieces()
        elif directive.name == "text" and not calls:
            pieces = tuple(json.loads(directive.words[0])["text"].splitlines(keepends=True))
        elif directive.name == "words" and not calls:
            pieces = tuple("w0" if n == 0 else f" w{n}" for n in range(int(directive.words[0])))
        elif directive.name == "refuse" and not calls:
            pieces, refused = directive.pieces(), True
        elif directive.name == "finish" and not calls:
            finish = directive.words[0]
        elif directive.name == "think" and (asked.thinks or asked.thinks_when_told):
            thoughts = directive.pieces()
        elif directive.name == "nothink":
            thoughts = ()
        elif directive.name == "redacted":
            redacted = asked.thinks
        elif directive.name in FAULTS and meets(directive, step, place):
            faults[directive.name] = directive
    pieces, stopped_by = _cut(pieces, asked.stops)
    if asked.most is not None and len(pieces) > asked.most:
        pieces, finish, stopped_by = pieces[: asked.most], "length", None
    plan = Plan(pieces, calls, finish, thoughts, redacted=redacted)
    plan.faults = faults
    plan.refused = refused
    plan.stopped_by = stopped_by
    return plan


def _cut(pieces: tuple[str, ...], stops: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    """The pieces before the first stop sequence, and that stop sequence, if any."""
    text = "".join(pieces)
    found = min(((text.index(stop), stop) for stop in stops if stop in text), default=None)
    if found is None:
        return pieces, None
    end, kept = found[0], []
    for piece in pieces:
        kept.append(piece[:end])
        end = max(0, end - len(piece))
    return tuple(piece for piece in kept if piece), found[1]


def _wanted(script: list[Directive], step: int, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The tools that this step calls, with their arguments."""
    steps = [directive for directive in script if directive.name in STEPS]
    loop = next((directive for directive in script if directive.name == "loop"), None)
    if loop is not None:
        return loop.calls()
    if step >= len(steps):
        return []
    doing = steps[step]
    if doing.name == "badargs":
        return [(doing.words[0] if doing.words else names[0] if names else "no_such_tool", '{"path": ')]
    if doing.name == "unknowntool":
        return [("no_such_tool", "{}")]
    return doing.calls()
