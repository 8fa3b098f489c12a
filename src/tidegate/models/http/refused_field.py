"""The field of a caller's request that an endpoint refused.

A provider reports an invalid value under its own format's name for the field: `text.format.schema` or
`output_config.format.schema` for `response_format`, or `tools.3.input_schema` for an entry of `tools`. The functions in
this module return the caller's name for the field, and only if the caller has set it: the rest of the request was
written by the gateway, so errors there are not the caller's. All functions are pure.
"""

import re

import msgspec

from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call

REFUSED_STATUS = frozenset({400, 422})
"""The statuses with which a provider rejects the request itself."""

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop_sequences": "stop",
    "output_config": "response_format",
    "text": "response_format",
    "logprobs": "top_logprobs",
    "safety_identifier": "user",
}
"""Providers' names for fields that have another name in `Call`, with the name in `Call`."""

_PATH = re.compile(r"[`'\"]?([a-z_]+)((?:[.\[][\w\]]+)*)")
_QUOTED = re.compile(r"[`'\"](?:\$\.)?([a-z_]{3,64})((?:[.\[][\w\]]{1,64}){0,8})[`'\"]")
_BEGINNING = re.compile(r"([a-z_]{1,64})((?:\.\w{1,64}){0,8})(?:: | must be )")
_NO_JSON_WORD = re.compile(r"(?i)contain the word ['\"]?json")
"""Matches the error from providers that refuse `json_object` unless a message mentions JSON."""
_INDEX = re.compile(r"\d{1,6}")
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def caller_field(param: str, message: str, prefix: EncodedPrefix, call: Call) -> str | None:
    """Returns the caller's field that an endpoint has refused, as found in the error's `param` or, failing that, in its
    message."""
    if call.response_format and _NO_JSON_WORD.search(message):
        return "response_format"
    if param:
        found = _PATH.match(param)
        return _field(found[1], found[2], prefix, call) if found else None
    for found in (_BEGINNING.match(message), *_QUOTED.finditer(message)):
        if found is not None and (field := _field(found[1], found[2], prefix, call)) is not None:
            return field
    return None


def _field(name: str, path: str, prefix: EncodedPrefix, call: Call) -> str | None:
    if name == "tools":
        return "tools" if _is_callers_tool(path, prefix) else None
    if name == "text" and "verbosity" in path:
        name = "verbosity"
    fields = _set_fields(call)
    if name not in fields:
        name = _NAMES.get(name, name)
    if name in fields:
        return "logprobs" if name == "top_logprobs" else name
    return None


def _set_fields(call: Call) -> set[str]:
    """Returns the fields that the caller has set, without `reasoning`, which may come from the session or the agent."""
    fields = {name for name in call.__struct_fields__ if getattr(call, name) not in (None, (), b"")}
    extras = set(msgspec.json.decode(call.extras)) if call.extras else set()
    return fields - {"reasoning", "extras", "caller_tools"} | extras


def _is_callers_tool(path: str, prefix: EncodedPrefix) -> bool:
    """True if the index in the path refers to one of the caller's tools, which follow the agent's own tools."""
    found = _INDEX.search(path)
    if not prefix.caller_tools or found is None:
        return False
    return int(found[0]) >= len(_decode_list(prefix.tools)) - len(prefix.caller_tools)
