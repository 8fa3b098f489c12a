"""Whether a gateway could start with this configuration: one answer for the start, `config check` and `doctor`.

Guarantee: what `examine` accepts, the house does not refuse later for its secrets, toolsets, folders or rules: the
first two it takes from here. All faults are told together, each with the full path of the file; nothing is made or
changed.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tidegate.config import FILE_NAME, Config, is_reference, load
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight import folders, prices, rules, skills
from tidegate.gateway.unready import Unready
from tidegate.security import Secret, resolve
from tidegate.tools import ToolRegistry, Toolset, builtin_toolsets, plugins

NO_KEY = Secret("no-key-was-needed-here")
"""Stands for a model's key that is missing where none is sent."""


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


def examine(home: Path, environment: Mapping[str, str], *, keyless: bool = False) -> Ready:
    """Read the configuration and all that it refers to; a secret that is missing is no fault where it is `keyless`."""
    config = settings(home)
    errors: list[str] = []
    references = _references(config)
    secrets = _secrets(config, references, environment, [] if keyless else errors)
    if keyless:
        models = (reference for setting, reference in references.items() if setting.startswith("[models."))
        secrets = {**dict.fromkeys(models, NO_KEY), **secrets}
    tools = ToolRegistry(_toolsets(config, errors))
    for name, agent in config.agents.items():
        try:
            tools.resolve(agent.tools, where=f"{FILE_NAME}: [agents.{name}] tools")
        except Misconfigured as error:
            errors.append(error.message)
    errors += folders.unsafe(config, references)
    errors += folders.told(config, references, secrets, environment)
    errors += rules.unreadable(config)
    errors += prices.unknown(config)
    errors += _no_plugin(config)
    if errors:
        raise Unready(tuple(with_path(home, error) for error in errors), config)
    warnings = (
        *_missing(config),
        *_pointless_delegates(config),
        *_pointless_rules(config, tools),
        *_doubtful_skills(config),
        *_no_network(config),
        *_projects_of_root(config),
    )
    return Ready(config, secrets, tools, warnings)


def _no_network(config: Config) -> Iterator[str]:
    """Where sandboxes are to have one, and what that takes is not installed."""
    if config.workspaces.network and config.workspaces.backend in ("auto", "bubblewrap"):
        from tidegate.workspaces.backends import sandbox_network

        if why := sandbox_network.missing():
            text = f"{FILE_NAME}: [workspaces] network: commands will be refused, as they can be given none: {why}"
            yield with_path(config.home, text)


def _toolsets(config: Config, errors: list[str]) -> dict[str, Toolset]:
    """Those that come with the gateway, and of the user's own those that an agent names."""
    named = dict.fromkeys(name for agent in config.agents.values() for name in agent.tools)
    found = builtin_toolsets(named)
    for name in named:
        if name in found:
            continue
        try:
            if (own := plugins.find_toolset(name, config.home / "tools")) is not None:
                found[name] = own
        except Misconfigured as error:
            errors.append(error.message)
    return found


def _no_plugin(config: Config) -> Iterator[str]:
    """What is wrong with the memory and the index of other makers, where these are used."""
    used = {toolset for agent in config.agents.values() for toolset in agent.tools}
    try:
        if config.memory.provider and "memory" in used:
            from tidegate.tools import memory_provider  # only where it is used

            memory_provider.find(config.memory.provider, config.home)
        if config.context.index and "context" in used:
            from tidegate.recall import search_index  # only where it is used

            search_index.find(config.context.index, config.home)
    except Misconfigured as error:
        yield f"{FILE_NAME}: {error.message}"


def _projects_of_root(config: Config) -> Iterator[str]:
    """Folders in which agents can write nothing, since they are never root."""
    if os.geteuid() != 0 or config.workspaces.backend == "ssh":
        return
    from tidegate.workspaces.kernel.users import is_root  # only where it is used

    if not is_root():
        return
    for name in config.agents:
        folder = config.project(name)
        if folder is not None and folder.is_dir():
            found = folder.stat()
            if found.st_uid == 0 and not found.st_mode & stat.S_IWOTH:
                yield (
                    f"{FILE_NAME}: [agents.{name}] workspace: {folder} belongs to root, and agents never run as root, "
                    "so they can write nothing there: give it to another user (chown)"
                )


def with_path(home: Path, message: str) -> str:
    """The message with the file's full path where its name stands at the beginning of a line."""
    file, name = str(home / FILE_NAME), f"{FILE_NAME}: "
    lines = []
    for line in message.split("\n"):
        rest = line.removeprefix(name)
        lines.append(line if rest == line else rest if rest.startswith(file) else f"{file}: {rest}")
    return "\n".join(lines)


def _references(config: Config) -> dict[str, str]:
    """Where the secrets are that the settings name, by setting."""
    named = {"[web] search_key": config.web.search_key}
    for name, model in config.models.items():
        named[f"[models.{name}] key"] = model.key
        named |= {f"[models.{name}] keys[{number}]": reference for number, reference in enumerate(model.keys)}
        named |= {f"[models.{name}] headers.{header}": value for header, value in model.headers.items()}
    return {setting: text for setting, text in named.items() if text is not None and is_reference(text)}


def _secrets(
    config: Config, references: Mapping[str, str], environment: Mapping[str, str], errors: list[str]
) -> dict[str, Secret]:
    """What the settings refer to, and nothing else of the environment."""
    found: dict[str, Secret] = {}
    for setting, reference in references.items():
        try:
            found[reference] = resolve(reference, environment, config.home)
        except Misconfigured as error:
            errors.append(f"{FILE_NAME}: {setting} = {error.message}")
    return found


def _missing(config: Config) -> Iterator[str]:
    for warning in folders.missing(config):
        yield with_path(config.home, warning)


def _pointless_delegates(config: Config) -> Iterator[str]:
    """Agents that could give tasks to nobody, or could not give them."""
    for name, agent in config.agents.items():
        if agent.delegates and "delegate" not in agent.tools:
            fault = "delegates has no effect: the toolset 'delegate' is not among its tools"
        elif "delegate" in agent.tools and not agent.delegates:
            fault = "tools has 'delegate', but delegates names nobody whom it may give tasks to"
        else:
            continue
        yield with_path(config.home, f"{FILE_NAME}: [agents.{name}] {fault}")


def _pointless_rules(config: Config, tools: ToolRegistry) -> Iterator[str]:
    for name, agent in config.agents.items():
        for warning in rules.pointless(name, agent, tools.resolve(agent.tools)):
            yield with_path(config.home, warning)


def _doubtful_skills(config: Config) -> Iterator[str]:
    for warning in skills.doubtful(config):
        yield with_path(config.home, warning)
