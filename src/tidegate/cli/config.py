"""`tidegate config`: is the configuration right, and what does it come to."""

from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command("check")
@home_option
@json_option
def check(home: Path, as_json: bool) -> None:
    """Say whether tidegate.toml is right; if not, where and why."""
    from tidegate.config import load
    from tidegate.tools import ToolRegistry, builtin_toolsets

    config = load(home)
    tools = ToolRegistry(builtin_toolsets())
    for name, agent in config.agents.items():
        tools.resolve(agent.tools, where=f"tidegate.toml: [agents.{name}] tools")
    found = (home / "tidegate.toml").exists()
    if as_json:
        print_json({"ok": True, "file": found, "demo": config.demo, "models": sorted(config.models)})
    elif not found:
        print(f"{home}/tidegate.toml does not exist: the defaults and the demo model are used.")
    else:
        print(f"{home}/tidegate.toml is right.")


@command.command("show")
@home_option
@json_option
def show(home: Path, as_json: bool) -> None:
    """Print the configuration in effect, defaults included; secrets appear only as references."""
    from tidegate import config

    text = config.show(config.load(home))
    if as_json:
        import tomllib

        print_json(tomllib.loads(text))
    else:
        print(text.rstrip())
