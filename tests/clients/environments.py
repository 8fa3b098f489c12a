"""The environments that clients are installed into.

One folder per client under `.clients/`: a virtual environment of Python, or a folder with `node_modules`. A folder is
reused while its packages in clients.toml stay the same, and created again otherwise.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".clients"
INSTALL_WITHIN = 1800.0
TAIL = 2000
STAMP = ".installed"


class Failed(Exception):
    """An environment could not be made; the message quotes the installer."""


@dataclass(frozen=True)
class Client:
    """One client of clients.toml. Its checks are in the file of its name beside this one."""

    name: str
    title: str
    python: tuple[str, ...] = ()
    node: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Requirements of the first package that are left out: large ones that the checks don't use."""
    within: float = 300.0
    """Seconds for all of its checks together."""

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def packages(self) -> tuple[str, ...]:
        return self.python + self.node

    @property
    def script(self) -> Path:
        return HERE / f"{self.name.replace('-', '_')}.{'mjs' if self.node else 'py'}"

    def command(self) -> list[str]:
        """The command that runs its checks in its environment."""
        if self.node:
            # Node resolves packages from the folder of the script.
            for source in (self.script, HERE / "check.mjs"):
                shutil.copy(source, self.folder / source.name)
            return ["node", str(self.folder / self.script.name)]
        return [str(self.folder / "bin" / "python"), "-m", f"tests.clients.{self.script.stem}"]


def read_clients() -> dict[str, Client]:
    listed = tomllib.loads((HERE / "clients.toml").read_text())
    return {
        name: Client(
            name,
            entry["title"],
            tuple(entry.get("python", ())),
            tuple(entry.get("node", ())),
            tuple(entry.get("without", ())),
            entry.get("within", 300.0),
        )
        for name, entry in listed.items()
    }


def install(client: Client, say: Callable[[str], None]) -> None:
    """Creates the client's environment unless it exists. Raises Failed."""
    wanted = "\n".join((*client.packages, *(f"without {name}" for name in client.without)))
    stamp = client.folder / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say(f"installing {' '.join(client.packages)}")
    shutil.rmtree(client.folder, ignore_errors=True)
    client.folder.mkdir(parents=True)
    if client.python:
        _run([sys.executable, "-m", "venv", str(client.folder)], client)
        pip = [str(client.folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        if client.without:
            _run([*pip, "--no-deps", client.python[0]], client)
            _run([*pip, *_requirements(client)], client)
        _run([*pip, *client.python[1:]] if client.without else [*pip, *client.python], client)
    if client.node:
        (client.folder / "package.json").write_text('{"private": true, "type": "module"}\n')
        _run(["npm", "install", "--silent", "--no-package-lock", "--no-audit", "--no-fund", *client.node], client)
    stamp.write_text(wanted)


def _requirements(client: Client) -> list[str]:
    """Requirements of the client's first package, without extras and omitted ones."""
    name = re.split(r"[=\[]", client.python[0])[0]
    code = "import importlib.metadata, sys; print(*importlib.metadata.requires(sys.argv[1]), sep='\\n')"
    listed = _run([str(client.folder / "bin" / "python"), "-c", code, name], client)
    return [
        line
        for line in listed.splitlines()
        if "extra ==" not in line and re.split(r"[=<>~!\[; ]", line)[0] not in client.without
    ]


def _run(command: list[str], client: Client) -> str:
    try:
        done = subprocess.run(
            command, cwd=client.folder, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{client.name} was not installed: {error}") from error
    if done.returncode != 0:
        raise Failed(f"{client.name} was not installed: {(done.stdout + done.stderr)[-TAIL:].strip()}")
    return done.stdout
