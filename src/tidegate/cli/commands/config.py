"""`tidegate config`: checks or shows the configuration."""

from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import print_json
from tidegate.gateway import PreflightFailed, examine, settings


@click.group("config")
def command() -> None:
    """Check or show the configuration."""


@command.command("check")
@home_option
@json_option
@click.pass_context
def check(context: click.Context, home: Path, as_json: bool) -> None:
    """Check tidegate.toml, its secrets, and everything else that the gateway needs to start."""
    try:
        config, _, _, warnings, _ = examine(home)
    except PreflightFailed as error:
        if not as_json:
            raise
        print_json({"ok": False, "errors": list(error.errors)})
        context.exit(1)
    found = (home / "tidegate.toml").exists()
    if as_json:
        print_json(
            {
                "ok": True,
                "file": found,
                "demo": config.demo,
                "models": sorted(config.models),
                "warnings": list(warnings),
            }
        )
        return
    for warning in warnings:
        print(f"warning: {warning}")
    if not found:
        print(f"{home}/tidegate.toml does not exist: the defaults and the demo model are used.")
    else:
        print(f"{home}/tidegate.toml is valid.")


@command.command("show")
@home_option
@json_option
def show(home: Path, as_json: bool) -> None:
    """Print the configuration in effect, including defaults. Secrets are shown only as references."""
    from tidegate.config import show as to_toml

    text = to_toml(settings(home))
    if as_json:
        import tomllib

        print_json(tomllib.loads(text))
    else:
        print(text.rstrip())
