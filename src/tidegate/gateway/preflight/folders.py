"""The folders and variables that agents are given, looked at before a gateway starts.

Guarantee: what belongs to the gateway is in none of them. A folder that is the home folder, holds it, or is one of the
gateway's own in it is a fault, and so is one that holds a secret which the settings name: whoever works there could
read the owner's key, rewrite the configuration and stop the gateway. So is one that shows the kernel's own folders, and
a variable that holds a secret. A folder to work in is nobody's home folder and holds none: what is written there is
executed when they log in. Folders are compared by what they are, not by how they are written, so that no `~`, `..`,
link or second mount hides one. A folder that is not there is a warning. Nothing is kept, made or changed.
"""

import contextlib
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from tidegate.config import FILE_NAME, Config
from tidegate.errors import Misconfigured
from tidegate.security import Secret

SHOWABLE = frozenset({"skills"})
"""Folders of the home that agents may read, and nobody but the owner writes: what one put there, others would go by."""

OWN = frozenset({"indexes", "spool", "tools", "trash", "workspaces"})
"""Folders of the home that are the gateway's alone. Whatever is a plain file there is taken for its own, too."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""What every sandbox shows of the machine."""

KERNEL = ("/proc", "/sys", "/dev")
"""Folders of the kernel's: processes with their environment, devices. A sandbox has its own."""

SHORTEST_PART = 8
"""Characters of a secret that is looked for within a variable: a shorter text is there by chance."""

NO_LOGIN = ("/nologin", "/false", "/sync", "/true")
"""Shells of users who are no people."""

_ELSEWHERE = "name a folder that lies elsewhere, or move the home folder with --home or TIDEGATE_HOME"


def unsafe(config: Config, secrets: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each folder that cannot be given to an agent. `secrets` are references, by setting."""
    home = _Place(config.home)
    kept = {setting: _Place(file) for setting, file in _secret_files(config, secrets)}
    for setting, text, use in _named(config):
        try:
            folder = config.path(text)
        except Misconfigured as error:
            yield f"{FILE_NAME}: {setting}: {error.message}"
            continue
        # With ssh it is another machine's, but for skills, which the gateway reads.
        here = config.workspaces.backend != "ssh" or use == "skills"
        own = OWN if use != "writing" else OWN | SHOWABLE
        why = _through_the_kernel(folder)
        if here:
            why = why or _shows(folder, config.home, home, kept, own)
        why = why or _of_the_kernel(folder)
        if here and use == "writing":
            why = why or _is_home(folder)
        if why is not None:
            yield f"{FILE_NAME}: {setting}: {why}"
    for system in (Path(name) for name in SYSTEM if not Path(name).is_symlink()):
        shown = _Place(system)
        if home.lies_in(shown):
            yield (
                f"the home folder {config.home} lies in {system}, which every sandbox shows: choose another with "
                "--home or TIDEGATE_HOME"
            )
        for setting, file in kept.items():
            if file.lies_in(shown):
                yield f"{FILE_NAME}: {setting}: the file lies in {system}, which every sandbox shows; keep it elsewhere"


def told(
    config: Config, references: Mapping[str, str], secrets: Mapping[str, Secret], environment: Mapping[str, str]
) -> Iterator[str]:
    """A sentence for each variable that commands would see and that holds a secret of the settings. `references` are by
    setting, `secrets` by reference."""
    for name in config.workspaces.environment:
        value = environment.get(name, "")
        for setting, reference in references.items():
            if reference == f"env:{name}" or _holds(value, secrets.get(reference)):
                yield (
                    f"{FILE_NAME}: [workspaces] environment: {name} holds the secret that {setting} names, and every "
                    "command could read it; take it out of the list"
                )
                break


def _holds(value: str, secret: Secret | None) -> bool:
    """Whether the secret is the value or a part of it, such as the password of an address."""
    if secret is None:
        return False
    text = secret.reveal()
    return value.strip() == text or (len(text) >= SHORTEST_PART and text in value)


def missing(config: Config) -> Iterator[str]:
    """A sentence for each folder of an agent's that is not there."""
    for name in config.agents:
        folder = config.project(name)
        if folder is not None and not folder.is_dir():
            reason = f"the folder {folder} does not exist; make it, or the agent's file tools will fail"
            yield f"{FILE_NAME}: [agents.{name}] workspace: {reason}"


def _named(config: Config) -> Iterator[tuple[str, str, Literal["writing", "reading", "skills"]]]:
    """What the settings name, each with its setting and what agents do there."""
    for name, agent in config.agents.items():
        if agent.workspace is not None:
            yield f"[agents.{name}] workspace", agent.workspace, "writing"
    for text in config.workspaces.read_only:
        yield "[workspaces] read_only", text, "reading"
    if any("skills" in agent.tools for agent in config.agents.values()):
        for text in ("skills", *config.skills.folders):
            yield "[skills] folders", text, "skills"


def _shows(
    folder: Path, home: Path, its_place: "_Place", secrets: Mapping[str, "_Place"], own: frozenset[str]
) -> str | None:
    """What of the gateway's the folder would show, and what to do about it; None when it is nothing."""
    place = _Place(folder)
    if its_place.lies_in(place):
        how = "is" if place.lies_in(its_place) else "holds"
        return f"the folder {folder} {how} the gateway's home folder {home}, with its keys; {_ELSEWHERE}"
    inside = place.below(its_place)
    if inside is not None and _is_own(home / inside[0], own):
        return f"{folder} is the gateway's own, in its home folder {home}; {_ELSEWHERE}"
    for setting, file in secrets.items():
        if file.lies_in(place):
            return f"the folder {folder} holds the secret that {setting} names; keep that file elsewhere"
    return None


def _of_the_kernel(folder: Path) -> str | None:
    """Which folder of the kernel's it would show, and what to do about it."""
    place = _Place(folder)
    for name in KERNEL:
        kernel = _Place(Path(name))
        if place.lies_in(kernel):
            return f"{folder} lies in {name}, which shows the machine's processes and devices; leave it out"
        if kernel.lies_in(place):
            return f"{folder} holds {name}, which shows the machine's processes and devices; name a folder below it"
    return None


def _through_the_kernel(folder: Path) -> str | None:
    """The same for a path that leads through one of them: what `/proc/self/cwd` is depends on who looks."""
    trail = {_identity(each) for each in (folder, *folder.parents)}
    for name in KERNEL:
        if _identity(Path(name)) in trail:
            return f"{folder} lies in {name}, which shows the machine's processes and devices; leave it out"
    return None


def _is_home(folder: Path) -> str | None:
    """Why agents cannot work in the folder: it is somebody's home folder, or holds that of somebody who can log in."""
    place = _Place(folder)
    for name, home, logs_in in _homes():
        its = _Place(home)
        if its.lies_in(place) and (logs_in or place.lies_in(its)):
            how = "is" if place.lies_in(its) else "holds"
            return f"the folder {folder} {how} the home folder of {name}; name a folder for the project alone"
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
        with contextlib.suppress(Misconfigured):  # whoever reads it tells that it cannot be found
            yield setting, config.path(text)


class _Place:
    """A path as what it leads to: itself and the folders above it, each known by its inode where there is one."""

    def __init__(self, path: Path) -> None:
        real = Path(os.path.realpath(path))
        self._trail = [(each.name, _identity(each)) for each in (real, *real.parents)]

    def lies_in(self, other: "_Place") -> bool:
        """Also when it is the same."""
        return any(identity == other._trail[0][1] for _, identity in self._trail)

    def below(self, other: "_Place") -> tuple[str, ...] | None:
        """Its path from there; None when it lies elsewhere."""
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
