"""`tidegate memory`: lists and edits notes about users and about agents' work.

Edited notes are saved only if nobody else has changed the notes in the meantime. Otherwise, or if the new text is
refused, the text is saved to a file whose name is printed, so no work is lost.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import at_terminal, local_time, plural, print_json, strip_controls
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.cli.client import GatewayClient

F = TypeVar("F", bound=Callable[..., Any])

_PATH = "/api/memory"
_SOURCES = {"person": "edited", "tool": "in a conversation", "end": "at the end of a conversation"}


@click.group("memory")
def command() -> None:
    """List or edit notes about yourself, another user, or an agent's work."""


def _subject_options(function: F) -> F:
    function = click.option("--agent", help="Notes about this agent's work.")(function)
    return click.option("--principal", help="Notes about the user with this name (default: you).")(function)


@command.command("list")
@_subject_options
@home_option
@json_option
def list_(principal: str | None, agent: str | None, home: Path, as_json: bool) -> None:
    """List notes: first those written by users, then the newest. New conversations get them in this order."""
    from tidegate.cli.client import GatewayClient

    found = _fetch_notes(GatewayClient(home), principal, agent)
    if as_json:
        print_json(found)
        return
    for note in found["notes"]:
        print(f"[{note['id']}] {strip_controls(note['text'])}")
        print(f"      {strip_controls(note['by'])}, {_SOURCES[note['source']]}, {local_time(note['at'])}")
    if not found["notes"]:
        print("There are no notes.")
    else:
        print(f"{found['bytes']} of {found['most']} bytes (memory.notes_bytes) are used.")


@command.command("add")
@click.argument("words", nargs=-1, required=True)
@_subject_options
@home_option
@json_option
def add(words: tuple[str, ...], principal: str | None, agent: str | None, home: Path, as_json: bool) -> None:
    """Add a note."""
    from tidegate.cli.client import GatewayClient

    body = {"text": " ".join(words), "principal": principal, "agent": agent}
    note = GatewayClient(home).call("POST", _PATH, body)
    print_json(note) if as_json else print(f"Added note {note['id']}.")


@command.command("forget")
@click.argument("number", type=click.IntRange(min=1))
@_subject_options
@home_option
@json_option
def forget(number: int, principal: str | None, agent: str | None, home: Path, as_json: bool) -> None:
    """Delete the note with this number (see `tidegate memory list`)."""
    from tidegate.cli.client import GatewayClient

    GatewayClient(home).call("DELETE", f"{_PATH}/{number}", query={"principal": principal, "agent": agent})
    print_json({"forgotten": number}) if as_json else print(f"Deleted note {number}.")


@command.command("edit")
@_subject_options
@click.option("--file", "file", help="Read the notes from this file (- is standard input) instead of an editor.")
@home_option
@json_option
def edit(principal: str | None, agent: str | None, file: str | None, home: Path, as_json: bool) -> None:
    """Edit notes as text, one per line with its number: change or remove lines, or add lines without a number.

    The environment variable VISUAL or EDITOR selects the editor.
    """
    from tidegate.cli.client import GatewayClient

    api = GatewayClient(home)
    found = _fetch_notes(api, principal, agent)
    if file is None:
        if not at_terminal():
            raise TidegateError("There is no terminal for an editor: use --file FILE, or --file - for standard input.")
        text = _run_editor(found["text"])
    else:
        text = _read(file)
    if text == found["text"]:
        print("Nothing was changed.", file=sys.stderr)
        return
    body = {"text": text, "version": found["version"], "principal": principal, "agent": agent}
    try:
        changed = api.call("PUT", _PATH, body)
    except TidegateError as error:
        if file is not None and file != "-":
            raise
        raise TidegateError(f"{error.message.rstrip('.')}: your text is in {_save_copy(text)}.") from None
    print_json(changed) if as_json else print(_summary(found["notes"], changed["notes"]))


def _summary(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    old, new = ({note["id"]: note["text"] for note in notes} for notes in (before, after))
    added, forgotten = len(new.keys() - old.keys()), len(old.keys() - new.keys())
    changed = sum(new[id] != old[id] for id in new.keys() & old.keys())
    return f"{added} added, {changed} changed, {forgotten} deleted; {plural(len(new), 'note')} now."


def _fetch_notes(api: "GatewayClient", principal: str | None, agent: str | None) -> dict[str, Any]:
    found: dict[str, Any] = api.call("GET", _PATH, query={"principal": principal, "agent": agent})
    return found


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TidegateError(f"{file} cannot be read ({why}): choose another file.") from None


def _run_editor(text: str) -> str:
    """Opens the text in an editor and returns the result."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "notes.txt"
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.call([*shlex.split(editor), str(file)])
        except (OSError, ValueError) as error:
            raise TidegateError(f"The editor {editor!r} cannot be started ({error}): set EDITOR to another.") from None
        if code != 0:
            raise TidegateError(f"The editor {editor!r} exited with code {code}, so nothing was changed.")
        return file.read_text(encoding="utf-8", errors="replace")


def _save_copy(text: str) -> str:
    """Writes the text to a new file that only its owner can read. Returns the file's name."""
    descriptor, name = tempfile.mkstemp(prefix="tidegate-notes-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return name
