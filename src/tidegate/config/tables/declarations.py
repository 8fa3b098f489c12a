"""How settings are declared: with an annotation that contains the rule and the documentation."""

from typing import Any, NamedTuple, get_type_hints

import msgspec

from tidegate.config.value_types import ValueType

KiB = 1024
MiB = 1024 * KiB
HOUR = 3600.0
DAY = 24 * HOUR


class DeclaredSetting(NamedTuple):
    """A setting's declaration. `default` is `msgspec.NODEFAULT` if the setting is required."""

    name: str
    rule: ValueType
    doc: str
    default: Any


def settings_of(table: type[msgspec.Struct]) -> dict[str, DeclaredSetting]:
    """Returns a table's settings, in the order of their declaration."""
    hints = get_type_hints(table, include_extras=True)
    found: dict[str, DeclaredSetting] = {}
    for field in msgspec.structs.fields(table):
        if (marks := getattr(hints[field.name], "__metadata__", None)) is None:
            continue
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        found[field.name] = DeclaredSetting(field.name, marks[0], marks[1], default)
    return found
