"""The checks of a configuration before a start, shared by the start itself, `config check` and `doctor`.

If `examine` accepts a configuration, it is not rejected later because of its secrets, toolsets, folders or rules. The
gateway uses the secrets and toolsets resolved here. All errors are reported together, each with the file's full path.
Nothing is created or changed.
"""

import importlib.util
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidegate.config import FILE_NAME, Config, is_reference, load, nearest, plugin_references
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight import PreflightFailed, folders, network, rules
from tidegate.security import Secret, resolve
from tidegate.tools import BUILTIN, Toolsets, builtin_toolsets

if TYPE_CHECKING:
    from tidegate.gateway.preflight.plugins import FoundPlugins

NO_KEY = Secret("no-key-was-needed-here")
"""A placeholder for a missing model key in a replay, which sends no keys."""
SKILLS = "skills"


class Ready(NamedTuple):
    """Everything from which a gateway is built. The `warnings` do not prevent it from starting."""

    config: Config
    secrets: Mapping[str, Secret]
    tools: Toolsets
    warnings: tuple[str, ...]
    plugins: "FoundPlugins | None"


def settings(home: Path) -> Config:
    """Reads only the configuration itself. Errors name the file's full path."""
    try:
        return load(home)
    except Misconfigured as error:
        raise PreflightFailed(tuple(with_path(home, error.message).split("\n"))) from None


def examine(home: Path, environment: Mapping[str, str], *, keyless: bool = False) -> Ready:
    """Reads the configuration and everything that it refers to. If `keyless` is true, a missing secret is not an
    error."""
    config = settings(home)
    errors: list[str] = []
    references = _references(config)
    secrets = _secrets(config, references, environment, [] if keyless else errors)
    if keyless:
        models = (reference for setting, reference in references.items() if setting.startswith("[models."))
        secrets = {**dict.fromkeys(models, NO_KEY), **secrets}
    named = {name for agent in config.agents.values() for name in agent.tools}
    tools = Toolsets(builtin_toolsets(named))
    plugins = _plugins(config)
    if plugins is not None:
        errors += plugins.errors
    for name, agent in config.agents.items():
        unknown = plugins.unknown_toolsets if plugins is not None else ()
        try:
            tools.resolve(
                [each for each in agent.tools if each in BUILTIN or each in unknown],
                where=f"{FILE_NAME}: [agents.{name}] tools",
            )
        except Misconfigured as error:
            errors.append(error.message)
    errors += folders.unsafe(config, references)
    errors += folders.exposed_secrets(config, references, secrets, environment)
    errors += rules.invalid(config)
    if not keyless:
        errors += network.faults(config, secrets, environment)
    errors += _unknown_prices(config)
    errors += _incomparable_vectors(config)
    errors += _no_mcp(config)
    if errors:
        raise PreflightFailed(tuple(with_path(home, error) for error in errors), config)
    warnings = (
        *(with_path(home, warning) for warning in folders.missing(config)),
        *_pointless_delegates(config),
        *_unused_embeddings(config),
        *_pointless_rules(config, tools),
        *(with_path(home, warning) for warning in (plugins.warnings if plugins is not None else ())),
        *_unused_plugin_tables(config, plugins),
        *_unusable_skills(config),
        *_no_network(config),
        *_projects_of_root(config),
    )
    return Ready(config, secrets, tools, warnings, plugins)


def _no_network(config: Config) -> Iterator[str]:
    """Yields a warning if sandboxes should have network access but the required programs are not installed."""
    if config.workspaces.network and config.workspaces.backend in ("auto", "bubblewrap"):
        from tidegate.workspaces.backends import sandbox_network

        if why := sandbox_network.missing():
            text = f"{FILE_NAME}: [workspaces] network: commands will be refused without network access: {why}"
            yield with_path(config.home, text)


def _plugins(config: Config) -> "FoundPlugins | None":
    """Finds the plug-ins that the configuration uses. If it uses none, returns None and imports nothing."""
    used = {toolset for agent in config.agents.values() for toolset in agent.tools}
    provider, index = config.memory.provider and "memory" in used, config.context.index and "context" in used
    if not (provider or index or used - set(BUILTIN)):
        return None
    from tidegate.gateway.preflight.plugins import find_plugins  # imported only if it is used

    return find_plugins(config)


def _unused_plugin_tables(config: Config, plugins: "FoundPlugins | None") -> Iterator[str]:
    used = () if plugins is None else {use.name for use in plugins.uses}
    for name in config.plugins:
        if name not in used:
            fault = f"[plugins.{name}] has no effect: no agent uses a plug-in with that name"
            yield with_path(config.home, f"{FILE_NAME}: {fault}")


def _projects_of_root(config: Config) -> Iterator[str]:
    """Yields a warning for each folder that agents cannot write to because it belongs to root. Agents never run as
    root."""
    if os.geteuid() != 0 or config.workspaces.backend == "ssh":
        return
    from tidegate.workspaces.kernel.users import is_root  # imported only if it is used

    if not is_root():
        return
    for name in config.agents:
        folder = config.project(name)
        if folder is not None and folder.is_dir():
            found = folder.stat()
            if found.st_uid == 0 and not found.st_mode & stat.S_IWOTH:
                yield (
                    f"{FILE_NAME}: [agents.{name}] workspace: {folder} belongs to root, and agents never run as root, "
                    "so they cannot write anything there: give it to another user (chown)"
                )


def with_path(home: Path, message: str) -> str:
    """Replaces the file name with the full path in each line of the message that begins with it."""
    file, name = str(home / FILE_NAME), f"{FILE_NAME}: "
    lines = []
    for line in message.split("\n"):
        rest = line.removeprefix(name)
        lines.append(line if rest == line else rest if rest.startswith(file) else f"{file}: {rest}")
    return "\n".join(lines)


def _references(config: Config) -> dict[str, str]:
    """Returns the references to secrets in the settings, by setting."""
    named = {
        "[network] proxy": config.network.proxy,
        "[web] proxy": config.web.proxy,
        "[web] search_key": config.web.search_key,
    }
    for name, table in config.plugins.items():
        named |= {f"[plugins.{name}] {key}": reference for key, reference in plugin_references(table)}
    for name, model in config.models.items():
        named[f"[models.{name}] key"] = model.key
        named[f"[models.{name}] proxy"] = model.proxy
        named |= {f"[models.{name}] keys[{number}]": reference for number, reference in enumerate(model.keys)}
        named |= {f"[models.{name}] headers.{header}": value for header, value in model.headers.items()}
    named |= _mcp_references(config)
    return {setting: text for setting, text in named.items() if text is not None and is_reference(text)}


def _mcp_references(config: Config) -> dict[str, str | None]:
    named: dict[str, str | None] = {}
    for name, server in config.mcp.items():
        named[f"[mcp.{name}] token"] = server.token
        named |= {f"[mcp.{name}] env.{variable}": value for variable, value in server.env.items()}
        named |= {f"[mcp.{name}] headers.{header}": value for header, value in server.headers.items()}
    return named


def mcp_secrets(config: Config, environment: Mapping[str, str]) -> tuple[list[str], dict[str, Secret]]:
    """Checks the settings of MCP servers that were changed while the gateway runs. Returns the errors, and the secrets
    by reference."""
    references = _references(config)
    own = {setting: text for setting, text in _mcp_references(config).items() if setting in references}
    errors = list(folders.unsafe(config, references))
    return errors, _secrets(config, {setting: text for setting, text in own.items() if text}, environment, errors)


def _secrets(
    config: Config, references: Mapping[str, str], environment: Mapping[str, str], errors: list[str]
) -> dict[str, Secret]:
    """Returns the secrets to which the settings refer. No other environment variables are read."""
    found: dict[str, Secret] = {}
    for setting, reference in references.items():
        try:
            found[reference] = resolve(reference, environment, config.home)
        except Misconfigured as error:
            errors.append(f"{FILE_NAME}: {setting} = {error.message}")
    return found


def _pointless_delegates(config: Config) -> Iterator[str]:
    """Yields a warning for each agent that may delegate but lacks the tool, or that has the tool but no agent to
    delegate to."""
    for name, agent in config.agents.items():
        if agent.delegates and "delegate" not in agent.tools:
            fault = "delegates has no effect: the toolset 'delegate' is not among its tools"
        elif "delegate" in agent.tools and not agent.delegates:
            fault = "tools includes 'delegate', but delegates names no agent: add the agents that may receive tasks"
        else:
            continue
        yield with_path(config.home, f"{FILE_NAME}: [agents.{name}] {fault}")


def _pointless_rules(config: Config, tools: Toolsets) -> Iterator[str]:
    for name, agent in config.agents.items():
        if any(toolset not in BUILTIN for toolset in agent.tools):
            continue  # a plug-in's tools are not known before it is created
        for warning in rules.pointless(name, agent, tools.resolve(agent.tools)):
            yield with_path(config.home, warning)


def _unknown_prices(config: Config) -> Iterator[str]:
    """If a budget limits money, yields an error for each model without a known price, since the budget could not be
    enforced."""
    budget = next((name for name, settings in config.budgets.items() if settings.money is not None), None)
    if budget is None:
        return
    from tidegate.models import Catalog  # imported only for budgets in money

    catalog = Catalog.shipped()
    for name, model in config.models.items():
        if catalog.facts_of(model).prices is None:
            yield (
                f"{FILE_NAME}: [models.{name}] has no known price, but [budgets.{budget}] limits money: set its "
                f"{_PRICE_SETTINGS[model.kind]} (0 for a local model)."
            )


_PRICE_SETTINGS = {
    "chat": "price_input and price_output in dollars per million tokens",
    "embeddings": "price_input in dollars per million tokens",
    "transcription": "price_minute in dollars per minute, or price_input and price_output per million tokens",
    "speech": "price_characters in dollars per million characters, or price_input and price_output per million tokens",
}


def _incomparable_vectors(config: Config) -> Iterator[str]:
    """Yields an error if vectors are configured but cannot be compared."""
    if not config.context.embeddings:
        return
    from tidegate.store import vectors_fault

    if (fault := vectors_fault()) is not None:
        yield f"{FILE_NAME}: [context] embeddings: {fault}; install it with pip install 'tidegate[vectors]'"


def _unused_embeddings(config: Config) -> Iterator[str]:
    if config.context.embeddings and not any("context" in agent.tools for agent in config.agents.values()):
        fault = "[context] embeddings has no effect: no agent has the toolset 'context'"
        yield with_path(config.home, f"{FILE_NAME}: {fault}")


def _no_mcp(config: Config) -> Iterator[str]:
    """Yields an error if an MCP server is configured and the SDK is not installed."""
    if config.mcp and importlib.util.find_spec("mcp") is None:
        yield (
            f"{FILE_NAME}: [mcp.{next(iter(config.mcp))}] requires the package mcp: install tidegate with the extra "
            "mcp (pip install 'tidegate[mcp]')"
        )


def _unusable_skills(config: Config) -> Iterator[str]:
    """Yields a warning for each unusable skill, and for each skill in the settings that does not exist."""
    for warning in skill_warnings(config):
        yield with_path(config.home, warning)


def skill_warnings(config: Config) -> Iterator[str]:
    for name, agent in config.agents.items():
        if agent.skills and SKILLS not in agent.tools:
            yield f'{FILE_NAME}: [agents.{name}] skills: has no effect without "skills" among its tools; add it there'
    agents = [name for name, agent in config.agents.items() if SKILLS in agent.tools]
    if not agents:
        return
    from tidegate.skills import SkillDiscovery, unknown_skills  # imported only if an agent has skills

    for text in config.skills.folders:
        if not (folder := config.path(text)).is_dir():
            yield f"{FILE_NAME}: [skills] folders: there is no folder {folder}; create it, or remove it from the list"
    discovery = SkillDiscovery(config)
    warnings: dict[str, None] = {}
    for name in agents:
        skill_set, wanted = discovery.discover(name), config.agents[name].skills
        warnings |= dict.fromkeys(str(left) for left in skill_set.left_out if not left.covered)
        if not (absent := unknown_skills(skill_set, wanted)):
            continue
        found = [entry.name for entry in discovery.discover(name, narrowed=False).entries]
        for missing in absent:
            fault = f"there is no skill {missing!r}{nearest(missing, found)}"
            warnings[f"{FILE_NAME}: [agents.{name}] skills: {fault}"] = None
    yield from warnings
