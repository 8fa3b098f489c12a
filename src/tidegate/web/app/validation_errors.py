"""Validation errors in plain English.

Each error becomes one sentence that names the path of the invalid value in the request and describes the expected value
and, if that helps, the value received. Long values are quoted only in part. This module is imported when the first
invalid request arrives.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

from tidegate.errors import Refused

QUOTED_CHARACTERS = 100
"""Maximum length of a quoted value, so that an error does not repeat a megabyte of the request."""

_AT = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_BOUND = re.compile(r"Expected `([^`]+)`( of length)? (<=|>=|<|>) (\S+)")
_PATTERN = re.compile(r"Expected `str` matching regex '(.+)'", re.DOTALL)
_CHOICE = re.compile(r"Invalid (?:enum )?value (.+)", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")
_KINDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_UNITS = {"str": "character", "array": "entry", "object": "entry"}


def refusal(text: str, kind: Any, *, root: str = "", texts_only: bool = False) -> Refused:
    """Returns the refusal for the validator's message `text` about a value of type `kind`. `root` is what the message
    calls the request. If `texts_only` is true, all values are strings, as in a query, so the message does not mention
    this."""
    path, of_key = "", False
    if found := _AT.search(text):
        path, of_key, text = found[2], found[1] is not None, text[: found.start()]
    if missing := _MISSING.fullmatch(text):
        name = (root + path + "." + missing[1]).lstrip(".")
        return Refused(f"`{name}` is missing.", param=name)
    inside = path.endswith("[...]")
    name = (root + path.removesuffix("[...]")).lstrip(".")
    subject = f"`{name}`" if name else "The body"
    if of_key or inside:
        subject = f"{'Each name' if of_key else 'Each value'} in {subject}"
    return Refused(f"{subject} {_predicate(text, kind, path, texts_only)}.", param=name or None)


def _predicate(text: str, kind: Any, path: str, texts_only: bool) -> str:
    if found := _TYPE.fullmatch(text):
        must = f"must be {_either(found[1].split(' | '))}"
        return must if texts_only else f"{must}, not {_actual(found[2], found[1])}"
    if found := _BOUND.fullmatch(text):
        number = found[4].removesuffix(".0")
        unit = ""
        if found[2]:
            word = _UNITS.get(found[1], "entry")
            unit = " " + (word if number == "1" else word.replace("entry", "entrie") + "s")
        return f"must be {_KINDS.get(found[1], found[1])} of {_BOUNDS[found[3]]} {number}{unit}"
    if found := _PATTERN.fullmatch(text):
        return f"must be a string that matches {found[1]}"
    if found := _CHOICE.fullmatch(text):
        value = found[1] if len(found[1]) <= QUOTED_CHARACTERS else found[1][:QUOTED_CHARACTERS] + "…"
        allowed = _allowed(kind, path)
        return f"must be {_listed(allowed)}, not {value}" if allowed else f"cannot be {value}"
    if text == "Number out of range":
        return "is a number out of range"
    return f"is not valid: {text.replace('`', '')[: 2 * QUOTED_CHARACTERS]}"


def _either(kinds: list[str]) -> str:
    words: list[str] = []
    for kind in kinds:
        if kind == "int" and "float" in kinds:
            continue
        words += ("true", "false") if kind == "bool" else (_KINDS.get(kind, kind),)
    return _listed(words)


def _actual(kind: str, expected: str) -> str:
    if kind == "float" and "int" in expected:
        return "a number with a fraction"
    return "a number" if kind == "int" else _KINDS.get(kind, kind)


def _listed(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


# -- the allowed values ------------------------------------------------------------------------------------------------


def _allowed(kind: Any, path: str) -> list[str]:
    """Returns the allowed values of the choice at a path."""
    found = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        found = [inner for each in _unfolded(found) for inner in _within(each, step[1])]
    return [repr(value) for each in _unfolded(found) for value in _values(each)]


def _unfolded(kinds: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for kind in kinds:
        if isinstance(kind, inspect.Metadata):
            yield from _unfolded((kind.type,))
        elif isinstance(kind, inspect.UnionType):
            yield from _unfolded(kind.types)
        else:
            yield kind


def _within(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        if kind.tag_field == name:
            yield inspect.LiteralType((kind.tag,))
        yield from (field.type for field in kind.fields if field.encode_name == name)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield kind.item_type
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type


def _values(kind: inspect.Type) -> Iterable[Any]:
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return ()
