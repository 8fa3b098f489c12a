"""Questions from a server to the user, asked in the same way as those of any other tool.

A form is asked field by field. Every question names the server and quotes the server's text without invisible
characters, so that the text cannot be mistaken for the gateway's. Answers are converted to the field's type; if an
answer is invalid, the question is asked once more. The gateway never opens a page: it shows the page's full address.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tidegate.errors import ToolFailed
from tidegate.mcp.listing import one_line, shortened

FIELDS_AT_MOST = 12
CHOICES_AT_MOST = 20
MESSAGE_CHARACTERS = 1000

YES, NO, DECLINE, SKIP = "yes", "no", "decline", "skip"

Ask = Callable[[str, Sequence[str]], Awaitable[str]]
Value = str | int | float | bool | list[str] | None


async def ask_form(
    ask: Ask, server: str, message: str, schema: Mapping[str, Any]
) -> tuple[str, dict[str, Value] | None]:
    """Asks for every field. Returns the action ("accept", "decline" or "cancel") and the values."""
    fields = schema.get("properties")
    if not isinstance(fields, Mapping) or len(fields) > FIELDS_AT_MOST:
        return "cancel", None
    required = schema.get("required") or ()
    intro = f'The server {server!r} asks: "{shortened(message, MESSAGE_CHARACTERS)}"'
    if not fields:
        return ("accept", {}) if await ask(intro, (YES, DECLINE)) == YES else ("decline", None)
    values: dict[str, Value] = {}
    for name, field in fields.items():
        if not isinstance(field, Mapping):
            return "cancel", None
        answer = await _ask_field(ask, intro, name, field, name in required)
        if answer is _Declined:
            return "decline", None
        if answer is not _Skipped:
            values[name] = answer
    return "accept", values


async def ask_page(ask: Ask, server: str, message: str, url: str) -> str:
    """Asks the user to open an address. Returns the action."""
    question = (
        f'The server {server!r} asks you to open a page: "{shortened(message, MESSAGE_CHARACTERS)}"\n'
        f"{one_line(url, 1500)}\nOpen it only if you trust the server and the address."
    )
    return "accept" if await ask(question, ("I have opened it", DECLINE)) != DECLINE else "decline"


class _Declined:
    pass


class _Skipped:
    pass


async def _ask_field(ask: Ask, intro: str, name: str, field: Mapping[str, Any], required: bool) -> Any:
    choices, values = _choices(field)
    title = one_line(str(field.get("title") or name), 100)
    about = one_line(str(field.get("description") or ""), 300)
    default = field.get("default")
    question = f"{intro}\n{title}{f': {about}' if about else ''}"
    if default is not None:
        question += f"\nDefault: {one_line(str(default), 100)}"
    others = (DECLINE,) if required and default is None else (SKIP, DECLINE)
    for attempt in range(2):
        answer = await ask(question, (*choices, *others) if choices else ())
        if answer == DECLINE:
            return _Declined
        if answer == SKIP or (not answer.strip() and (not required or default is not None)):
            return _Skipped if default is None else default
        if choices:
            return values.get(answer, _Declined)
        try:
            return _converted(answer, field)
        except ValueError as error:
            if attempt:
                raise ToolFailed(f"The answer to {title} could not be used: {error}.") from None
            question = f"{question}\nThe last answer could not be used: {error}."
    return _Declined


def _choices(field: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Returns a field's choices as displayed, and their values. Both are empty if any answer is allowed."""
    if field.get("type") == "boolean":
        return (YES, NO), {YES: True, NO: False}
    items = field.get("items") if field.get("type") == "array" else field
    options = items if isinstance(items, Mapping) else {}
    named = options.get("oneOf") or options.get("anyOf") or ()
    pairs = [(str(each.get("title") or each["const"]), each["const"]) for each in named if "const" in each]
    if not pairs and isinstance(options.get("enum"), Sequence):
        titles = options.get("enumNames") or options["enum"]
        pairs = [(str(title), each) for title, each in zip(titles, options["enum"], strict=False)]
    several = field.get("type") == "array"
    shown = {one_line(title, 200): [value] if several else value for title, value in pairs[:CHOICES_AT_MOST]}
    return tuple(shown), shown


def _converted(answer: str, field: Mapping[str, Any]) -> Value:
    kind = field.get("type")
    text = answer.strip()
    if kind in ("integer", "number"):
        try:
            number: int | float = int(text) if kind == "integer" else float(text)
        except ValueError:
            raise ValueError("it must be a whole number" if kind == "integer" else "it must be a number") from None
        least, most = field.get("minimum"), field.get("maximum")
        if isinstance(least, int | float) and number < least:
            raise ValueError(f"it must be at least {least}")
        if isinstance(most, int | float) and number > most:
            raise ValueError(f"it must be at most {most}")
        return number
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    shortest, longest = field.get("minLength"), field.get("maxLength")
    if isinstance(shortest, int) and len(text) < shortest:
        raise ValueError(f"it must have at least {shortest} characters")
    if isinstance(longest, int) and len(text) > longest:
        raise ValueError(f"it must have at most {longest} characters")
    return text
