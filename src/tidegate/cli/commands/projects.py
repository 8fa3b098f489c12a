"""`tidegate projects`: reviews files in shared project folders before they are used in prompts.

Files are shown with invisible characters made visible. The gateway accepts a file only if it has not changed since it
was shown.
"""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import at_terminal, print_json, print_table, strip_controls
from tidegate.errors import TidegateError
from tidegate.safe_text import escape_invisible

if TYPE_CHECKING:
    from tidegate.cli.client import GatewayClient

_PATH = "/api/projects/files"
_SHOWN_BYTES = 1024 * 1024  # as much as fits into a prompt; the gateway's digest covers the same part


@click.group("projects")
def command() -> None:
    """List or accept prompt files in project folders that users other than the owner can write to."""


@command.command("list")
@home_option
@json_option
def list_(home: Path, as_json: bool) -> None:
    """List skill files, AGENTS.md and similar files in folders in which other users' conversations have worked."""
    from tidegate.cli.client import GatewayClient

    files = _files(GatewayClient(home))
    if as_json:
        print_json(files)
        return
    rows = [(file["path"], "yes" if file["trusted"] else "no: new or changed") for file in files]
    print_table(("file", "used in prompts"), rows, empty="Only the owner's conversations have used project folders.")


@command.command("trust")
@click.argument("paths", nargs=-1)
@click.option("--yes", is_flag=True, help="Accept without showing the files or asking.")
@home_option
@json_option
def trust(paths: tuple[str, ...], yes: bool, home: Path, as_json: bool) -> None:
    """Accept the current versions of new or changed files at PATHS (default: all).

    Each file is shown before it is accepted. Accepted files are used in new conversations.
    """
    from tidegate.cli.client import GatewayClient

    if not yes and not at_terminal():
        raise TidegateError("There is no terminal for a confirmation: read the files, then use --yes.")
    api = GatewayClient(home)
    chosen = _select(_files(api), paths)
    accepted = [file for file in chosen if yes or _confirm(file)]
    if accepted:
        api.call("POST", _PATH, {"files": [{"path": file["path"], "sha256": file["sha256"]} for file in accepted]})
    if as_json:
        print_json([file["path"] for file in accepted])
        return
    for file in accepted:
        print(f"Accepted: {strip_controls(file['path'])}")
    if not accepted:
        print("Nothing was accepted.", file=sys.stderr)


def _files(api: "GatewayClient") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.call("GET", _PATH)["files"]
    return [{**file, "trusted": file.get("trusted", False)} for file in found]


def _select(files: list[dict[str, Any]], paths: tuple[str, ...]) -> list[dict[str, Any]]:
    if not paths:
        return [file for file in files if not file["trusted"]]
    known = {file["path"]: file for file in files}
    chosen = [str(Path(path).resolve()) for path in paths]
    for path in chosen:
        if path not in known:
            raise TidegateError(f"{strip_controls(path)} is not a prompt file; see `tidegate projects list`.")
    return [known[path] for path in chosen]


def _confirm(file: dict[str, Any]) -> bool:
    with Path(file["path"]).open("rb") as opened:
        data = opened.read(_SHOWN_BYTES)
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise TidegateError(f"{strip_controls(file['path'])} has changed since it was listed; try again.")
    print(f"--- {strip_controls(file['path'])}")
    for line in data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n"):
        print(escape_invisible(line.removesuffix("\r")))
    return click.confirm("--- Use it in prompts?")
