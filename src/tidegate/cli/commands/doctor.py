"""`tidegate doctor`: checks the installation for problems and suggests fixes.

It changes nothing. A running gateway checks its own database. If no gateway is running, the database is checked here,
and no gateway can start until the check is done.
"""

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import click

from tidegate.cli.commands.status import commands, read_status
from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import join_words, print_json, size
from tidegate.config import ModelSettings, WorkspaceSettings, is_loopback
from tidegate.errors import TidegateError
from tidegate.gateway import (
    Holder,
    HomeLock,
    PreflightFailed,
    ask,
    command_hint,
    examine,
    holder_of,
    lost_database,
    settings,
)

if TYPE_CHECKING:
    from tidegate.models import Facts

_WARN_DISK_BYTES = 1 << 30
_FAIL_DISK_BYTES = 64 << 20  # below this, writes will soon fail
_CHECK_SECONDS = 300.0


class Finding(NamedTuple):
    name: str
    state: Literal["ok", "warn", "fail"]
    text: str


@click.command("doctor")
@home_option
@json_option
@click.pass_context
def command(context: click.Context, home: Path, as_json: bool) -> None:
    """Check the installation for problems."""
    findings = list(_findings(home))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            print(f"{finding.state:<4}  {finding.name}: {finding.text}")
    context.exit(1 if any(finding.state == "fail" for finding in findings) else 0)


def _findings(home: Path) -> Iterator[Finding]:
    holder = holder_of(home) if home.is_dir() else None
    checks: tuple[Callable[[Path, Holder | None], Finding], ...] = (
        _home, _key, _config, _gateway, _port, _library, _database, _disk, _commands,
    )  # fmt: skip
    for check in checks:
        yield check(home, holder)
    yield from _protections(home)
    yield from _models(home)


def _home(home: Path, _holder: Holder | None) -> Finding:
    if not home.exists():
        above = next(path for path in home.parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            text = f"{home} cannot be created in {above}: choose another folder with --home or TIDEGATE_HOME."
            return Finding("home folder", "fail", text)
        return Finding("home folder", "ok", f"{home} does not exist yet; {command_hint(home, 'up')} creates it.")
    found = home.stat()
    if found.st_uid != os.getuid():
        return Finding("home folder", "fail", f"{home} belongs to uid {found.st_uid}: run as that user.")
    for path in (home, home / "tidegate.db"):
        if path.exists() and not os.access(path, os.W_OK):
            return Finding("home folder", "fail", f"{path} is not writable: is it immutable, or its disk read-only?")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding("home folder", "warn", f"other users can read {home}: chmod 700 {home}")
    return Finding("home folder", "ok", f"{home}; private (0700).")


def _key(home: Path, _holder: Holder | None) -> Finding:
    path = home / "api-key"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return Finding("key", "ok" if not (home / "tidegate.db").exists() else "warn",
                       f"{path} does not exist; the next {command_hint(home, 'up')} creates it.")  # fmt: skip
    if mode & 0o077:
        return Finding("key", "fail", f"other users can read {path}: chmod 600 {path}, and revoke the key in it.")
    return Finding("key", "ok", f"{path}; private (0600).")


def _config(home: Path, holder: Holder | None) -> Finding:
    try:
        config, _, _, warnings, _ = examine(home)
    except PreflightFailed as error:
        text = "; ".join(error.errors)
        if holder is None or error.config is None:
            return Finding("configuration", "fail", text)
        # The running gateway may have got its secrets from another environment, such as a service's.
        return Finding("configuration", "warn", f"the gateway would not start from this shell: {text}")
    if warnings:
        return Finding("configuration", "warn", "; ".join(warnings))
    if config.demo:
        return Finding("configuration", "ok", f"no model in {home}/tidegate.toml; the demo model is used.")
    return Finding("configuration", "ok", f"models: {', '.join(sorted(config.models))}.")


def _models(home: Path) -> Iterator[Finding]:
    """Yields warnings for models with assumed properties."""
    try:
        models = settings(home).models
    except TidegateError:
        yield Finding("models", "warn", "unknown until the configuration is valid.")
        return
    from tidegate.models import Catalog

    catalogue = Catalog.shipped()
    assumed = {name: text for name, model in models.items() if (text := _assumptions(model, catalogue.facts_of(model)))}
    for name, text in assumed.items():
        yield Finding(f"model {name}", "warn", f"{text} in [models.{name}].")
    if not assumed:
        yield Finding("models", "ok", f"their properties are known; {command_hint(home, 'models')} lists them.")


def _assumptions(model: ModelSettings, facts: "Facts") -> str | None:
    if model.kind != "chat":
        if not facts.known:
            return f"not in the catalogue; assuming texts of up to {facts.window:,} tokens: set context_window"
        return None
    if not facts.known:
        guesses = (
            (model.context_window is None, f"a window of {facts.window:,} tokens", ("context_window",)),
            (model.vision is None, "no images", ("vision",)),
            (model.audio is None, "no audio", ("audio",)),
            (facts.prices is None, "no price", ("price_input", "price_output")),
        )
        assumptions = [words for guessed, words, _ in guesses if guessed]
        unset = [name for guessed, _, names in guesses if guessed for name in names]
        return f"not in the catalogue; assuming {join_words(assumptions)}: set {join_words(unset)}"
    is_local = model.api != "demo" and is_loopback(urlsplit(model.base_url).hostname or "")
    if is_local and model.context_window is None:
        return (
            f"assuming a window of {facts.window:,} tokens, but local servers often have less: set context_window to "
            "the server's value"
        )
    return None


def _gateway(home: Path, holder: Holder | None) -> Finding:
    if holder is None:
        return Finding("gateway", "ok", f"not running; start it with {command_hint(home, 'up')}.")
    return Finding("gateway", "ok", f"running ({holder}).")


def _port(home: Path, holder: Holder | None) -> Finding:
    if holder is not None and holder.address:
        return Finding("port", "ok", f"{holder.address}, in use by the running gateway.")
    try:
        server = settings(home).server
    except TidegateError:
        return Finding("port", "warn", "unknown until the configuration is valid.")
    with socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            text = f"{server.host} port {server.port} cannot be used ({error.strerror}): change [server] port."
            return Finding("port", "fail", text)
    if server.port == 0:
        return Finding("port", "ok", f"any free port on {server.host}.")
    return Finding("port", "ok", f"{server.host} port {server.port} is free.")


def _library(_home: Path, _holder: Holder | None) -> Finding:
    from tidegate.store import database_library

    library = database_library()
    if library.problem is not None:
        return Finding(library.name, "fail", library.problem)
    return Finding(library.name, "ok", library.version)


def _database(home: Path, holder: Holder | None) -> Finding:
    path = home / "tidegate.db"
    if holder is None:
        if (lost := lost_database(home)) is not None:
            return Finding("database", "fail", lost)
        if not path.exists():
            return Finding("database", "ok", "does not exist yet.")
    try:
        problems, standing = _check_running(home) if holder is not None else (_check_file(home, path), [])
    except TidegateError as error:
        return Finding("database", "fail" if holder is not None else "warn", f"not checked: {error.message}")
    if problems:
        text = f"is damaged ({problems[0]}): stop the gateway, keep a copy of {path}, and restore a backup."
        return Finding("database", "fail", text)
    if standing:
        return Finding("database", "fail", "; ".join(standing))
    by = "by the running gateway" if holder is not None else "directly, since no gateway is running"
    return Finding("database", "ok", f"intact ({size(path.stat().st_size)}; checked {by}).")


def _check_running(home: Path) -> tuple[list[str], list[str]]:
    """Returns the problems found by a full check, and any other open problems with the database or its disk."""
    answer: dict[str, Any] = ask(home, {"do": "check"}, within=_CHECK_SECONDS)
    standing = [str(problem["text"]) for problem in answer["standing"]]
    return [str(problem) for problem in answer["problems"]], standing


def _check_file(home: Path, path: Path) -> list[str]:
    """Checks the file directly. The home folder is locked during the check, so no gateway can start."""
    from tidegate.store import check_file

    lock = HomeLock(home)
    lock.take()
    try:
        return check_file(path, owned=(home / "api-key").exists())
    finally:
        lock.release()


def _disk(home: Path, _holder: Holder | None) -> Finding:
    folder = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free < _FAIL_DISK_BYTES:
        return Finding("disk", "fail", f"{size(free)} free at {folder}: free some space, or messages will be refused.")
    if free < _WARN_DISK_BYTES:
        return Finding("disk", "warn", f"{size(free)} free at {folder}: free some space soon.")
    return Finding("disk", "ok", f"{size(free)} free at {folder}.")


def _protections(home: Path) -> Iterator[Finding]:
    """Yields the sandboxes' isolation features, with a warning for each feature that is required by the settings but
    missing."""
    from tidegate.workspaces.kernel.sandbox_support import sandbox_features

    try:
        workspaces = settings(home).workspaces
    except TidegateError:
        workspaces = WorkspaceSettings()
    sandboxed = workspaces.backend in ("auto", "bubblewrap")
    for name, text, missing in sandbox_features():
        needed = sandboxed and (name != "pasta" or workspaces.network)
        if missing and not needed:
            missing = f"not needed with these settings. {missing[0].upper()}{missing[1:]}"
        yield Finding(name, "warn" if missing and needed else "ok", missing or text)


def _commands(home: Path, holder: Holder | None) -> Finding:
    """Reports how the limits for commands are enforced. The method depends on how the gateway was started, so only a
    running gateway knows."""
    if holder is None:
        return Finding("commands", "ok", "start the gateway to see how their limits are enforced.")
    try:
        workspaces = read_status(ask(home, {"do": "status", "memory": False})).workspaces
    except TidegateError as error:
        return Finding("commands", "warn", f"the gateway did not answer: {error.message}")
    text = commands(workspaces)
    if workspaces.warning:
        return Finding("commands", "warn", f"{text.removesuffix('.')}. {workspaces.warning}")
    return Finding("commands", "warn" if workspaces.problem else "ok", text)
