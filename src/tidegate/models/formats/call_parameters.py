"""Parameters of a caller's request shared by several formats: tool choice, response format, extras, reasoning effort.

Any input is either parsed or refused with a ModelFailed of kind `invalid` that explains in one sentence what to change.
Schemas are kept verbatim. A reasoning effort is mapped to one of the model's own levels: the nearest one that does not
exceed the requested effort, otherwise the lowest. All functions are pure; formats parse the caller's JSON only here.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegate.errors import ModelFailed
from tidegate.models.catalog.facts import Facts
from tidegate.values import Call, Frozen

_ABSENT = msgspec.Raw()
_DEFAULTS = {"temperature": 1, "top_p": 1}
"""OpenAI's default values for the fields whose default is not 0."""
_UNCHANGING = frozenset(
    {"include_reasoning", "prediction", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"}
)
"""Extra fields that do not change the answer. They are dropped for formats that do not support them."""
_RANKS = {"off": 0, "none": 0, "minimal": 1, "low": 2, "medium": 3, "high": 4, "xhigh": 5, "max": 6}
"""The ranks of reasoning efforts, on a common scale for our names and the providers' names. Our names range from off to
max."""


class ToolChoice(Frozen, frozen=True):
    """Determines which tools the model may or must call. With kind `function`, it must call the tool in `names`. With
    kind `allowed`, it may call only the tools in `names`, and must call one of them if `is_required` is true."""

    kind: Literal["none", "auto", "required", "function", "allowed"]
    names: tuple[str, ...] = ()
    is_required: bool = False


class OutputShape(Frozen, frozen=True):
    """The required shape of the answer's text. `schema` is set for kind `json_schema`."""

    kind: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str = ""
    schema: msgspec.Raw = _ABSENT
    strict: bool = False


class _Named(msgspec.Struct):
    name: str


class _Chosen(msgspec.Struct, tag_field="type", tag="function"):
    function: _Named


class _Limit(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_Chosen]


class _Allowed(msgspec.Struct, tag_field="type", tag="allowed_tools"):
    allowed_tools: _Limit


class _Schema(msgspec.Struct):
    schema: msgspec.Raw = _ABSENT
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema = msgspec.field(default_factory=_Schema)


_decode_choice = msgspec.json.Decoder(Literal["none", "auto", "required"] | _Chosen | _Allowed).decode
_decode_format = msgspec.json.Decoder(_Format).decode
_decode_extras = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# Errors of a decoder for arbitrary bytes; RecursionError is raised for extreme nesting.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def invalid(sentence: str, param: str) -> ModelFailed:
    """Returns the error for field `param` of the caller's request, which this model does not accept."""
    return ModelFailed(sentence, kind="invalid", retryable=False, param=param)


def refuse_fields(call: Call, *fields: str) -> None:
    """Refuses a call that sets one of these fields to anything but its default."""
    for field in fields:
        if getattr(call, field) not in (None, {}, _DEFAULTS.get(field, 0)):
            raise invalid(f"This model does not support `{field}`; leave it out, or choose another model.", field)


def refuse_extras(call: Call, *known: str) -> dict[str, msgspec.Raw]:
    """Returns a call's provider-specific fields. Refuses fields that the format lacks and that could change the
    answer."""
    extras = _decode_extras(call.extras) if call.extras else {}
    for field in extras:
        if field not in known and field not in _UNCHANGING:
            raise invalid(f"This model does not support `{field}`; leave it out, or choose another model.", field)
    return extras


def caller_identifier(call: Call) -> str:
    """Returns the id of the caller's end user, from `safety_identifier` or the older `user`."""
    identifier = _decode_extras(call.extras).get("safety_identifier") if call.extras else None
    return msgspec.json.decode(identifier, type=str) if identifier else call.user or ""


def parse_tool_choice(choice: bytes) -> ToolChoice:
    try:
        decoded = _decode_choice(choice)
    except _UNREADABLE as error:
        raise invalid(
            'This model does not accept this tool_choice; send "none", "auto", "required" or one function.',
            "tool_choice",
        ) from error
    match decoded:
        case _Chosen():
            return ToolChoice(kind="function", names=(decoded.function.name,))
        case _Allowed():
            limit = decoded.allowed_tools
            names = tuple(tool.function.name for tool in limit.tools)
            return ToolChoice(kind="allowed", names=names, is_required=limit.mode == "required")
        case _:
            return ToolChoice(kind=decoded)


def parse_response_format(response_format: bytes) -> OutputShape:
    try:
        decoded = _decode_format(response_format)
    except _UNREADABLE as error:
        raise invalid(
            "This model does not accept this response_format; send a json_schema in OpenAI's shape.",
            "response_format",
        ) from error
    schema = decoded.json_schema
    if decoded.type == "json_schema" and not _present(schema.schema):
        raise invalid(
            "`response_format` has no `json_schema.schema`; send the schema that the answer must follow.",
            "response_format",
        )
    return OutputShape(
        kind=decoded.type,
        name=schema.name,
        description=schema.description or "",
        schema=_present(schema.schema),
        strict=bool(schema.strict),
    )


def requested_effort(facts: Facts, reasoning: str | None) -> str | None:
    """Returns the effort to send, or None to send none. An unknown model may not be able to think at all, so nothing is
    sent for "off", not even the model's lowest effort."""
    if reasoning is None or facts.thinking == "none" or (reasoning == "off" and facts.thinking_unknown):
        return None
    return nearest_effort(reasoning, facts.efforts)


def nearest_effort(reasoning: str, efforts: Sequence[str]) -> str | None:
    """Returns the model's highest effort that does not exceed `reasoning`. Returns the model's lowest effort if all of
    them exceed it, or None if the model has none. A name that is not on the scale is returned unchanged."""
    if reasoning not in _RANKS:
        return reasoning
    known = sorted((effort for effort in efforts if effort in _RANKS), key=_RANKS.__getitem__)
    if not known:
        return None
    fitting = [effort for effort in known if _RANKS[effort] <= _RANKS[reasoning]]
    return fitting[-1] if fitting else known[0]


def _present(raw: msgspec.Raw) -> msgspec.Raw:
    """Returns a copy, so that the request from which the value was decoded can be freed. The copy is empty for
    `null`."""
    return _ABSENT if bytes(raw) in (b"", b"null") else msgspec.Raw(bytes(raw))
