"""`tidegate mcp`: MCP servers, whose tools agents can use.

`add`, `remove` and `import` change `tidegate.toml` and keep its comments. A changed file is checked before it replaces
the old one. If a gateway is running, it applies the change immediately. Secrets are never written to the file: `import`
puts the secrets that it finds into separate files, which only their owner can read.
"""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import plural, print_json, print_table, strip_controls
from tidegate.errors import Misconfigured, NotFound, TidegateError
from tidegate.gateway import ControlUnanswered, ask, holder_of

IMPORT_BYTES = 1024 * 1024
"""Size limit of a file with servers of another program."""

SECRETS = "secrets"
"""The folder in the home folder for the secrets of imported servers."""

_TEST_SECONDS = 120.0
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@click.group("mcp")
def command() -> None:
    """Add, list, test, restart, remove or import MCP servers."""


@command.command("list")
@home_option
@json_option
def list_(home: Path, as_json: bool) -> None:
    """List the servers of the running gateway."""
    servers = ask(home, {"do": "mcp", "what": "list"})["servers"]
    if as_json:
        print_json(servers)
        return
    rows = [
        (each["name"], each["state"], each["transport"], "?" if each["tools"] is None else each["tools"],
         each["restarts"], each["revision"] or "?", each["error"] if each["state"] != "ready" else "")
        for each in servers
    ]  # fmt: skip
    heads = ("name", "state", "transport", "tools", "restarts", "revision", "last error")
    print_table(heads, rows, empty="No MCP servers. Add one with `tidegate mcp add`.", numbers={3, 4})


@command.command("add")
@click.argument("name")
@click.argument("program", nargs=-1)
@click.option("--url", help="The address of a server that is already running, instead of a program.")
@click.option("--sse", is_flag=True, help="Use the older HTTP with server-sent events for --url.")
@click.option("--token", metavar="REFERENCE", help='The bearer token for --url: "env:NAME" or "file:PATH".')
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="An HTTP header for --url.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="An environment variable.")
@click.option("--cwd", metavar="FOLDER", help="A folder of yours that the program may change.")
@click.option("--read-only", "read_only", multiple=True, metavar="FOLDER", help="A further folder that it may read.")
@click.option("--agent", "agents", multiple=True, help="An agent that may use it (repeat for more; default: all).")
@click.option("--approve", type=click.Choice(["never", "writes", "always"]), help="Which calls need approval.")
@click.option("--no-network", is_flag=True, help="Start the program without network access.")
@click.option("--no-sandbox", is_flag=True, help="Start the program without a sandbox.")
@home_option
@json_option
def add(
    name: str,
    program: tuple[str, ...],
    url: str | None,
    sse: bool,
    token: str | None,
    headers: tuple[str, ...],
    variables: tuple[str, ...],
    cwd: str | None,
    read_only: tuple[str, ...],
    agents: tuple[str, ...],
    approve: str | None,
    no_network: bool,
    no_sandbox: bool,
    home: Path,
    as_json: bool,
) -> None:
    """Add the server NAME.

    \b
    tidegate mcp add time -- uvx mcp-server-time
    tidegate mcp add docs --url https://mcp.example.org/mcp --token env:DOCS_TOKEN
    """
    if bool(program) == bool(url):
        raise click.UsageError("Specify either a program after -- or --url.")
    table: dict[str, Any] = {}
    if program:
        table |= {"command": program[0], "args": list(program[1:])}
    settings = {
        "url": url,
        "transport": "sse" if sse else None,
        "token": token,
        "headers": _pairs(headers, "--header"),
        "env": _pairs(variables, "--env"),
        "cwd": None if cwd is None else str(Path(cwd).expanduser().absolute()),
        "read_only": [str(Path(each).expanduser().absolute()) for each in read_only],
        "agents": list(agents),
        "approve": approve,
    }
    table |= {key: value for key, value in settings.items() if value}
    if no_network:
        table["network"] = False
    if no_sandbox:
        table["sandbox"] = False
    _change(home, {name: table}, refuse_existing=True)
    applied = _apply(home)
    if as_json:
        print_json({"added": name, "applied": applied})
    else:
        print(f"Added {name}. {_applied(applied)} Try it with `tidegate mcp test {name}`.")


@command.command("remove")
@click.argument("name")
@home_option
@json_option
def remove(name: str, home: Path, as_json: bool) -> None:
    """Remove the server NAME, with its home folder."""
    _change(home, {name: None})
    applied = _apply(home)
    if as_json:
        print_json({"removed": name, "applied": applied})
    else:
        print(f"Removed {name}. {_applied(applied)}")


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@home_option
@json_option
def import_(file: Path, home: Path, as_json: bool) -> None:
    """Add the servers of another program from its JSON FILE (`mcpServers`)."""
    found, skipped = read_servers(file)
    existing = set(_document(home).get("mcp", {}))
    tables: dict[str, dict[str, Any]] = {}
    secrets: dict[str, str] = {}
    for name, entry in found.items():
        chosen = _short_name(name, {*existing, *tables})
        if chosen in existing:
            skipped[name] = "a server with this name already exists"
            continue
        tables[chosen] = _hide_secrets(chosen, entry, secrets)
    _change(home, tables)
    _write_secrets(home, secrets)
    applied = _apply(home)
    if as_json:
        print_json({"added": sorted(tables), "skipped": skipped, "secrets": sorted(secrets), "applied": applied})
        return
    print(f"Added {plural(len(tables), 'server')}: {', '.join(sorted(tables)) or 'none'}. {_applied(applied)}")
    for path in sorted(secrets):
        print(f"A secret is now in {home / path}.")
    for name, why in skipped.items():
        print(strip_controls(f"Skipped {name}: {why}."), file=sys.stderr)


@command.command("test")
@click.argument("name")
@home_option
@json_option
def test(name: str, home: Path, as_json: bool) -> None:
    """Start the server NAME and list what it offers."""
    found = ask(home, {"do": "mcp", "what": "test", "name": name}, within=_TEST_SECONDS)
    if as_json:
        print_json(found)
        return
    print(f"{name} is ready: {found['server'] or 'a server without a name'}, revision {found['revision']}.")
    rows = [(tool["name"], "reads" if tool["read_only"] else "", tool["description"]) for tool in found["tools"]]
    print_table(("tool", "", "description"), rows, empty="It has no tools.")
    if found["prompts"]:
        print(f"Prompts: {', '.join(found['prompts'])}")
    for warning in found["warnings"]:
        print(f"Warning: {warning}", file=sys.stderr)


@command.command("logs")
@click.argument("name")
@home_option
@json_option
def logs(name: str, home: Path, as_json: bool) -> None:
    """Show the newest error output of the server NAME."""
    found = ask(home, {"do": "mcp", "what": "logs", "name": name})["logs"]
    if as_json:
        print_json(found)
        return
    for server, lines in found.items():
        if len(found) > 1:
            print(f"-- {server}")
        for line in lines:
            print(line)


@command.command("restart")
@click.argument("name")
@home_option
@json_option
def restart(name: str, home: Path, as_json: bool) -> None:
    """Restart the server NAME."""
    ask(home, {"do": "mcp", "what": "restart", "name": name}, within=_TEST_SECONDS)
    if as_json:
        print_json({"restarted": name})
    else:
        print(f"Restarted {name}.")


# -- the files of other programs --


def read_servers(file: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Returns the servers in a JSON file as tables of the configuration, and why the others were skipped."""
    with file.open("rb") as stream:
        data = stream.read(IMPORT_BYTES + 1)
    if len(data) > IMPORT_BYTES:
        raise TidegateError(f"{file} is larger than {IMPORT_BYTES:,} bytes, so it cannot be a list of servers.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise TidegateError(f"{file} is not valid JSON.") from None
    servers = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise TidegateError(f'{file} has no "mcpServers" object.')
    found: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name, entry in servers.items():
        try:
            found[name] = _table_of(entry)
        except ValueError as error:
            skipped[name] = str(error)
    return found, skipped


def _table_of(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError("its entry is not an object")
    if entry.get("disabled") is True:
        raise ValueError("it is disabled")
    url, program = entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl"), entry.get("command")
    texts: dict[str, Any] = {}
    if isinstance(url, str):
        texts = {"url": url, "headers": entry.get("headers")}
        if entry.get("type") == "sse" or entry.get("transport") == "sse":
            texts["transport"] = "sse"
    elif isinstance(program, str):
        texts = {"command": program, "args": entry.get("args"), "env": entry.get("env"), "cwd": entry.get("cwd")}
    else:
        raise ValueError("it has neither a command nor a URL")
    if re.search(r"\$\{", json.dumps(texts)):
        raise ValueError("it uses the other program's variables (${…})")
    return {key: value for key, value in texts.items() if value}


def _short_name(name: str, taken: set[str]) -> str:
    short = re.sub("__+", "_", _NAME.sub("-", name)).strip("-_")[:24] or "server"
    chosen, number = short, 2
    while chosen in taken and name != chosen:
        chosen, number = f"{short[:21]}-{number}", number + 1
    return chosen


def _hide_secrets(name: str, table: dict[str, Any], secrets: dict[str, str]) -> dict[str, Any]:
    """Returns the table with references to files in place of what may be a secret. Adds the files to `secrets`."""
    from tidegate.config import SENSITIVE_HEADER, is_reference, looks_secret

    hidden = dict(table)
    for group in ("env", "headers"):
        values = hidden.get(group)
        if not isinstance(values, dict):
            continue
        replaced: dict[str, Any] = {}
        for key, value in values.items():
            text = str(value)
            sensitive = looks_secret(text) or SENSITIVE_HEADER.search(key) or _SECRET_NAME.search(key)
            if sensitive and text and not is_reference(text):
                path = f"{SECRETS}/mcp-{name}-{_NAME.sub('-', key)}"
                secrets[path] = text
                text = f"file:{path}"
            replaced[key] = text
        hidden[group] = replaced
    return hidden


_SECRET_NAME = re.compile(r"token|secret|password|passwd|api_?key|credential", re.IGNORECASE)


def _write_secrets(home: Path, secrets: Mapping[str, str]) -> None:
    for path, text in secrets.items():
        file = home / path
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)


# -- the configuration file --


def _document(home: Path) -> Any:
    import tomlkit

    from tidegate.config import FILE_NAME

    file = home / FILE_NAME
    try:
        return tomlkit.parse(file.read_text()) if file.exists() else tomlkit.document()
    except (ValueError, tomlkit.exceptions.TOMLKitError) as error:
        raise Misconfigured(f"{file} cannot be read: {error}") from None


def _change(home: Path, tables: Mapping[str, dict[str, Any] | None], *, refuse_existing: bool = False) -> None:
    """Adds or, with None, removes tables `[mcp.NAME]`. The new file is checked before it replaces the old one."""
    import tomlkit

    from tidegate.config import FILE_NAME, nearest, read

    if not tables:
        return
    document = _document(home)
    group = document.get("mcp")
    if group is None:
        group = tomlkit.table(is_super_table=True)
        document["mcp"] = group
    for name, table in tables.items():
        if table is None:
            if name not in group:
                raise NotFound(f"There is no [mcp.{name}] in {home / FILE_NAME}{nearest(name, list(group))}")
            del group[name]
            continue
        if refuse_existing and name in group:
            raise TidegateError(f"A server named {name!r} already exists: remove it first, or choose another name.")
        group[name] = _toml(table)
    if not group:
        del document["mcp"]
    text = tomlkit.dumps(document)
    read(text, home)
    _replace(home / FILE_NAME, text)


def _toml(table: dict[str, Any]) -> Any:
    import tomlkit

    made = tomlkit.table()
    for key, value in table.items():
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            value = inline
        made.add(key, value)
    return made


def _replace(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            owner = file.stat()
            if owner.st_uid != os.geteuid():
                os.chown(fresh, owner.st_uid, owner.st_gid)
        fresh.rename(file)
    finally:
        fresh.unlink(missing_ok=True)


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{option} must be NAME=VALUE.")
        found[name] = value
    return found


def _apply(home: Path) -> dict[str, Any] | None:
    """Has the running gateway apply the file. Returns what it did, or None if none is running."""
    try:
        return ask(home, {"do": "mcp", "what": "apply"}, within=_TEST_SECONDS)
    except ControlUnanswered as error:
        if holder_of(home) is None:
            return None
        raise TidegateError(f"The file was changed, but the running gateway does not use it yet. {error}") from None
    except TidegateError as error:
        raise TidegateError(f"The file was changed, but the running gateway refuses it: {error}") from None


def _applied(applied: dict[str, Any] | None) -> str:
    return "The running gateway uses it now." if applied is not None else "It takes effect when the gateway starts."
