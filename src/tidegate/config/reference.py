"""Rendering of settings: the configuration as TOML, an example to start from, and the reference for the documentation.

Parsing the output of `show` with `read` results in the same configuration. Secrets appear only as references.
"""

import inspect
import json
import re
from collections.abc import Iterator

from tidegate.config.plugin_tables import plugin_block
from tidegate.config.settings import NAMED, SINGLE, Config
from tidegate.config.tables.declarations import DeclaredSetting, settings_of
from tidegate.config.value_types import Plain, References
from tidegate.values import Frozen

BARE = re.compile(r"[A-Za-z0-9_-]+")

_EXAMPLE = """\
# Put this into tidegate.toml in the home folder and start the gateway again.
[models.main]
api = "openai-chat"
base_url = "https://api.openai.com/v1"
model = "gpt-5-mini"
key = "env:OPENAI_API_KEY"        # or "file:PATH"; never the key itself

[agents.main]
model = "main"
prompt = "You are a helpful assistant. Answer briefly and truthfully."
tools = ["ask", "clock", "context", "files", "memory", "skills", "terminal"]
"""


def example() -> str:
    """Returns a minimal `tidegate.toml` with a real model."""
    return _EXAMPLE


def show(config: Config) -> str:
    """Formats the configuration in effect as TOML, including defaults."""
    blocks = [f"# in effect for {json.dumps(str(config.home))}, defaults included"]
    if config.demo:
        blocks[0] += "\n# no model is configured: the built-in demo model is used"
    for name, kind in SINGLE.items():
        blocks.append(_block(name, kind, getattr(config, name)))
    for group, kind in NAMED.items():
        if group == "models" and config.demo:
            continue
        for name, value in getattr(config, group).items():
            blocks.append(_block(f"{group}.{name if BARE.fullmatch(name) else json.dumps(name)}", kind, value))
    blocks += (plugin_block(name, table) for name, table in config.plugins.items())
    return "\n\n".join(blocks) + "\n"


def _block(title: str, kind: type[Frozen], value: Frozen) -> str:
    lines = [f"[{title}]"]
    for setting in settings_of(kind).values():
        current = getattr(value, setting.name)
        # TOML has no null, so unset values are omitted unless their type can write them.
        unset = current is None or current == "" or (isinstance(setting.rule, References) and not current)
        if current == setting.default and unset and isinstance(setting.rule, Plain):
            continue
        lines.append(f"{setting.name} = {setting.rule.write(current)}")
    return "\n".join(lines)


def reference() -> Iterator[tuple[str, str, list[DeclaredSetting]]]:
    """Yields each table's name in the file, its description and its settings, for the documentation."""
    for name, kind in SINGLE.items():
        yield name, inspect.cleandoc(kind.__doc__ or ""), list(settings_of(kind).values())
    for group, kind in NAMED.items():
        yield f"{group}.NAME", inspect.cleandoc(kind.__doc__ or ""), list(settings_of(kind).values())
    yield "plugins.NAME", "Settings of a plug-in, which defines its own keys; see docs/plugins.md.", []
