"""Whether a gateway could start with this configuration: one answer for the start, `config check` and `doctor`.

Guarantee: what `examine` accepts, the house does not refuse later for its secrets or toolsets, since the house takes
them from here. All faults are told together, each with the full path of the file; nothing is made or changed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.config import FILE_NAME, Config, is_reference, load
from tidegate.errors import Misconfigured
from tidegate.gateway.unready import Unready
from tidegate.security import Secret, resolve
from tidegate.tools import ToolRegistry, builtin_toolsets


class Ready(NamedTuple):
    """What the house is built from. `warnings` keep nobody from starting."""

    config: Config
    secrets: Mapping[str, Secret]
    tools: ToolRegistry
    warnings: tuple[str, ...]


def settings(home: Path) -> Config:
    """The configuration alone, with errors that name the file's full path."""
    try:
        return load(home)
    except Misconfigured as error:
        raise Unready(tuple(with_path(home, error.message).split("\n"))) from None


def examine(home: Path, environment: Mapping[str, str]) -> Ready:
    """Read the configuration and all that it refers to."""
    config = settings(home)
    errors: list[str] = []
    secrets = _secrets(config, environment, errors)
    tools = ToolRegistry(builtin_toolsets())
    for name, agent in config.agents.items():
        try:
            tools.resolve(agent.tools, where=f"{FILE_NAME}: [agents.{name}] tools")
            config.workspace(name)
        except Misconfigured as error:
            errors.append(error.message if error.message.startswith(FILE_NAME) else _of_workspace(name, error.message))
    if errors:
        raise Unready(tuple(with_path(home, error) for error in errors), config)
    return Ready(config, secrets, tools, tuple(_missing_folders(config)))


def with_path(home: Path, message: str) -> str:
    """The message with the file's full path where its name stands at the beginning of a line."""
    file, name = str(home / FILE_NAME), f"{FILE_NAME}: "
    lines = []
    for line in message.split("\n"):
        rest = line.removeprefix(name)
        lines.append(line if rest == line else rest if rest.startswith(file) else f"{file}: {rest}")
    return "\n".join(lines)


def _secrets(config: Config, environment: Mapping[str, str], errors: list[str]) -> dict[str, Secret]:
    """What the models' settings refer to, and nothing else of the environment."""
    found: dict[str, Secret] = {}
    for name, model in config.models.items():
        named = {"key": model.key, **{f"headers.{header}": value for header, value in model.headers.items()}}
        for setting, reference in named.items():
            if reference is None or not is_reference(reference):
                continue
            try:
                found[reference] = resolve(reference, environment, config.home)
            except Misconfigured as error:
                errors.append(f"{FILE_NAME}: [models.{name}] {setting} = {error.message}")
    return found


def _of_workspace(agent: str, reason: str) -> str:
    return f"{FILE_NAME}: [agents.{agent}] workspace: {reason}"


def _missing_folders(config: Config) -> Iterator[str]:
    for name, agent in config.agents.items():
        folder = config.workspace(name)
        if agent.workspace is not None and not folder.is_dir():
            reason = f"the folder {folder} does not exist; make it, or the agent's file tools will fail"
            yield with_path(config.home, _of_workspace(name, reason))
