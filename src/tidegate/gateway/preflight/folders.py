"""Startup checks for the folders and environment variables that agents can access.

None of these may expose the gateway's own data. It is an error if a folder is or contains the home folder, is one of
the gateway's own folders inside it, or contains a secret named in the settings: an agent working there could read the
owner's key, rewrite the configuration or stop the gateway. It is also an error if a folder exposes the kernel's file
systems, or if a variable contains a secret. A working folder must not be or contain a user's home folder, because some
files there are executed at the next login. Folders are compared by identity, not by spelling, so a folder cannot be
disguised by `~`, `..`, a link or a second mount. A missing folder is only a warning. Nothing is created or changed.
"""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from tidegate.config import FILE_NAME, Config
from tidegate.errors import Misconfigured
from tidegate.security import Secret

SHOWABLE = frozenset({"skills"})
"""Folders in the home folder that agents may read but not write, since other agents follow instructions in them."""

OWN = frozenset({"mcp", "plugin-data", "plugins", "spool", "trash", "workspaces"})
"""Folders in the home folder that are private to the gateway. All regular files there are private, too."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""System folders that are visible in every sandbox."""

KERNEL = ("/proc", "/sys", "/dev")
"""The kernel's file systems, which expose devices and other processes' environments. A sandbox has its own."""

SERVICES = "/run"
"""The folder with the machine's service sockets. Some of these services can control the machine, and a read-only mount
does not prevent connections."""

SHORTEST_PART = 8
"""Minimum length of a secret to search for inside variables. Shorter ones would match by chance."""

NO_LOGIN = ("/nologin", "/false", "/sync", "/true")
"""The shells of accounts that cannot log in."""

_ELSEWHERE = "choose a folder elsewhere, or move the home folder with --home or TIDEGATE_HOME"


def unsafe(config: Config, secrets: Mapping[str, str]) -> Iterator[str]:
    """Yields an error for each folder that agents must not access. `secrets` maps settings to references."""
    home = _Place(config.home)
    kept = {setting: _Place(file) for setting, file in _secret_files(config, secrets)}
    for setting, text, use in _named(config):
        try:
            folder = config.path(text)
        except Misconfigured as error:
            yield f"{FILE_NAME}: {setting}: {error.message}"
            continue
        # With ssh, the folder is on another machine, except for skills, which the gateway itself reads.
        here = config.workspaces.backend != "ssh" or use == "skills"
        own = OWN if use != "writing" else OWN | SHOWABLE
        why = _through_the_kernel(folder)
        if here:
            why = why or _shows(folder, config.home, home, kept, own)
        why = why or _of_the_kernel(folder)
        if here:
            why = why or shows_services(folder)
        if here and use == "writing":
            why = why or _is_home(folder)
        if why is not None:
            yield f"{FILE_NAME}: {setting}: {why}"
    for system in (Path(name) for name in SYSTEM if not Path(name).is_symlink()):
        shown = _Place(system)
        if home.is_within(shown):
            yield (
                f"the home folder {config.home} is in {system}, which every sandbox shows: choose another with "
                "--home or TIDEGATE_HOME"
            )
        for setting, file in kept.items():
            if file.is_within(shown):
                yield f"{FILE_NAME}: {setting}: the file is in {system}, which every sandbox shows; keep it elsewhere"


def exposed_secrets(
    config: Config, references: Mapping[str, str], secrets: Mapping[str, Secret], environment: Mapping[str, str]
) -> Iterator[str]:
    """Yields an error for each variable that is passed to commands and contains a secret from the settings.
    `references` maps settings to references, and `secrets` maps references to secrets."""
    for name in config.workspaces.environment:
        value = environment.get(name, "")
        for setting, reference in references.items():
            if reference == f"env:{name}" or _contains(value, secrets.get(reference)):
                yield (
                    f"{FILE_NAME}: [workspaces] environment: {name} contains the secret of {setting}, and every "
                    "command could read it; remove it from the list"
                )
                break


def _contains(value: str, secret: Secret | None) -> bool:
    """True if the secret is the whole value or part of it, such as the password in an address."""
    if secret is None:
        return False
    text = secret.reveal()
    return value.strip() == text or (len(text) >= SHORTEST_PART and text in value)


def missing(config: Config) -> Iterator[str]:
    """Yields a warning for each agent whose folder does not exist."""
    for name in config.agents:
        folder = config.project(name)
        if folder is not None and not folder.is_dir():
            reason = f"the folder {folder} does not exist; create it, or the agent's file tools will fail"
            yield f"{FILE_NAME}: [agents.{name}] workspace: {reason}"


def _named(config: Config) -> Iterator[tuple[str, str, Literal["writing", "reading", "skills"]]]:
    """Yields each folder named in the settings, as (setting, folder, use)."""
    for name, agent in config.agents.items():
        if agent.workspace is not None:
            yield f"[agents.{name}] workspace", agent.workspace, "writing"
    for name, server in config.mcp.items():
        if server.cwd is not None and server.sandbox:
            yield f"[mcp.{name}] cwd", server.cwd, "writing"
        for text in server.read_only:
            yield f"[mcp.{name}] read_only", text, "reading"
    for text in config.workspaces.read_only:
        yield "[workspaces] read_only", text, "reading"
    if any("skills" in agent.tools for agent in config.agents.values()):
        for text in ("skills", *config.skills.folders):
            yield "[skills] folders", text, "skills"


def _shows(
    folder: Path, home: Path, its_place: "_Place", secrets: Mapping[str, "_Place"], own: frozenset[str]
) -> str | None:
    """Returns an error if the folder would expose the gateway's private files, else None."""
    place = _Place(folder)
    if its_place.is_within(place):
        how = "is" if place.is_within(its_place) else "contains"
        return f"the folder {folder} {how} the gateway's home folder {home}, with its keys; {_ELSEWHERE}"
    inside = place.below(its_place)
    if inside is not None and _is_own(home / inside[0], own):
        return f"{folder} is private to the gateway, in its home folder {home}; {_ELSEWHERE}"
    for setting, file in secrets.items():
        if file.is_within(place):
            return f"the folder {folder} contains the secret of {setting}; keep that file elsewhere"
    return None


def _of_the_kernel(folder: Path) -> str | None:
    """Returns an error if the folder would expose one of the kernel's file systems, else None."""
    place = _Place(folder)
    for name in KERNEL:
        kernel = _Place(Path(name))
        if place.is_within(kernel):
            return f"{folder} is in {name}, which shows the machine's processes and devices; remove it"
        if kernel.is_within(place):
            return f"{folder} contains {name}, which shows the machine's processes and devices; choose a subfolder"
    return None


def _through_the_kernel(folder: Path) -> str | None:
    """Returns an error if the path leads through one of the kernel's file systems, since a path such as
    `/proc/self/cwd` differs between processes."""
    trail = {_identity(each) for each in (folder, *folder.parents)}
    for name in KERNEL:
        if _identity(Path(name)) in trail:
            return f"{folder} is in {name}, which shows the machine's processes and devices; remove it"
    return None


def shows_services(folder: Path, services: str = SERVICES) -> str | None:
    """Returns an error if the folder would expose the sockets of the machine's services. Other folders inside
    `services`, such as a mounted disk, are allowed."""
    place, all_services = _Place(folder), _Place(Path(services))
    inside = place.below(all_services)
    if all_services.is_within(place) or (inside is not None and (inside[0] == "user" or _holds_socket(folder))):
        return f"{folder} contains sockets of the machine's services, which commands could control; remove it"
    return None


def _holds_socket(folder: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(stat.S_ISSOCK(entry.stat().st_mode) for entry in entries if not entry.is_dir())
    return False


def _is_home(folder: Path) -> str | None:
    """Returns an error if the folder is a user's home folder, or contains the home folder of a user who can log in."""
    place = _Place(folder)
    for name, home, logs_in in _homes():
        its = _Place(home)
        if its.is_within(place) and (logs_in or place.is_within(its)):
            how = "is" if place.is_within(its) else "contains"
            return f"the folder {folder} {how} the home folder of {name}; use a separate folder for the project"
    return None


def _homes() -> Iterator[tuple[str, Path, bool]]:
    with contextlib.suppress(RuntimeError):
        yield "the gateway's user", Path.home(), True
    yield "root", Path("/root"), True
    yield "the machine's users", Path("/home"), True
    for user in pwd.getpwall():
        yield user.pw_name, Path(user.pw_dir), not user.pw_shell.endswith(NO_LOGIN)


def _is_own(path: Path, own: frozenset[str]) -> bool:
    return path.name in own or (path.exists() and not path.is_dir())


def _secret_files(config: Config, secrets: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    named = {setting: text.removeprefix("file:") for setting, text in secrets.items() if text.startswith("file:")}
    if config.server.tls_key is not None:
        named["[server] tls_key"] = config.server.tls_key
    for setting, text in named.items():
        with contextlib.suppress(Misconfigured):  # reported when the secret is read
            yield setting, config.path(text)


class _Place:
    """A path's target and the folders above it, each identified by its inode if it exists."""

    def __init__(self, path: Path) -> None:
        real = Path(os.path.realpath(path))
        self._trail = [(each.name, _identity(each)) for each in (real, *real.parents)]

    def is_within(self, other: "_Place") -> bool:
        """True if this folder is inside the other one or is the same folder."""
        return any(identity == other._trail[0][1] for _, identity in self._trail)

    def below(self, other: "_Place") -> tuple[str, ...] | None:
        """Returns the path relative to the other folder, or None if it is not inside that folder."""
        names: list[str] = []
        for name, identity in self._trail:
            if identity == other._trail[0][1]:
                return tuple(reversed(names))
            names.append(name)
        return None


def _identity(path: Path) -> tuple[int, int] | str:
    try:
        found = path.stat()
    except OSError:
        return str(path)
    return found.st_dev, found.st_ino
