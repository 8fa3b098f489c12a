"""The configuration's tables `[plugins.NAME]`: settings that a plug-in defines for itself.

The values are immutable TOML values. Only one rule, which holds for the entire file, is checked here: secrets are given
as references (`env:NAME` or `file:PATH`), never in plain text.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from types import MappingProxyType
from typing import Any

from tidegate.config.value_types import NAME, SECRET, SENSITIVE_HEADER, is_reference, quote

PLUGINS = "plugins"

DEEPEST = 8
"""Maximum depth of nested tables and lists in the settings of one plug-in."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def plugin_tables(given: Any, faults: list[str]) -> Mapping[str, Mapping[str, Any]]:
    """Reads the tables, by plug-in. Errors in them are added to `faults`."""
    if not isinstance(given, dict):
        faults.append(f"{PLUGINS} must be tables, [{PLUGINS}.NAME], not {quote(given)}")
        return MappingProxyType({})
    found: dict[str, Mapping[str, Any]] = {}
    for name, table in given.items():
        if not NAME.fullmatch(name):
            faults.append(f"{PLUGINS}: the name of a plug-in has at most 64 letters, digits, '.', '_' and '-'")
        elif not isinstance(table, dict):
            faults.append(f"{PLUGINS}.{name} must be a table, [{PLUGINS}.{name}], not {quote(table)}")
        else:
            faults += (f"{PLUGINS}.{name}.{fault}" for fault in _faults(table, 1))
            found[name] = _frozen(table)
    return MappingProxyType(found)


def plugin_block(name: str, table: Mapping[str, Any]) -> str:
    """Formats one table as TOML."""
    return "\n".join([f"[{PLUGINS}.{_key(name)}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())])


def references(table: Any) -> Iterator[tuple[str, str]]:
    """Yields the references to secrets in a plug-in's settings, each with its key. Nested tables are not searched."""
    for key, value in table.items():
        if isinstance(value, str) and is_reference(value):
            yield key, value


def _faults(value: Any, level: int, key: str = "") -> Iterator[str]:
    if level > DEEPEST:
        yield f"{key} is nested too deeply"
    elif isinstance(value, dict):
        for inner, each in value.items():
            yield from _faults(each, level + 1, f"{key}.{inner}" if key else inner)
    elif isinstance(value, list):
        for each in value:
            yield from _faults(each, level + 1, key)
    elif isinstance(value, str) and value and not is_reference(value):
        is_named_secret = SENSITIVE_HEADER.search(key) is not None
        if is_named_secret or SECRET.search(value):
            yield f'{key} must be a reference to a secret, "env:NAME" or "file:PATH"'


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(each) for key, each in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return _text(value) if isinstance(value, str) else repr(value)
