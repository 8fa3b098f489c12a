"""Options shared by several commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def home_option(function: F) -> F:
    return click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="TIDEGATE_HOME",
        default=lambda: Path("~/.tidegate"),
        callback=lambda _context, _option, value: value.expanduser().absolute(),
        help="The gateway's home folder (TIDEGATE_HOME; default ~/.tidegate).",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(function)
