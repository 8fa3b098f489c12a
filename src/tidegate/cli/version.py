"""`tidegate version`."""

import click

from tidegate import __version__
from tidegate.cli.options import json_option
from tidegate.cli.output import print_json


@click.command("version")
@json_option
def command(as_json: bool) -> None:
    """Show the version."""
    if as_json:
        print_json({"version": __version__})
    else:
        print(f"tidegate {__version__}")
