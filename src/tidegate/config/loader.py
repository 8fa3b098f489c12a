"""Loads `tidegate.toml` into a validated `Config`.

Whatever the file contains, `load` and `read` return a valid configuration or raise `Misconfigured`. Each error is one
sentence that names the file and the key. The first ten errors are reported together. Values that may be secrets are
never quoted.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tidegate.config.plugin_tables import PLUGINS, plugin_tables
from tidegate.config.settings import NAMED, SINGLE, Config
from tidegate.config.tables.agents import AgentSettings
from tidegate.config.tables.declarations import settings_of
from tidegate.config.tables.limits import BudgetSettings
from tidegate.config.tables.mcp import McpSettings
from tidegate.config.tables.models import MODEL_KINDS, ModelKindName, ModelSettings
from tidegate.config.tables.server import ServerSettings, is_loopback
from tidegate.config.tables.workspaces import WebSettings
from tidegate.config.value_types import NAME, InvalidValue, is_reference, looks_secret, nearest, quote
from tidegate.errors import Misconfigured
from tidegate.values import Frozen

FILE_NAME = "tidegate.toml"
FILE_BYTES = 4 * 1024 * 1024
"""Maximum size of the file. Configurations are written by hand, so a larger file is a mistake."""

FAULTS_SHOWN = 10
"""Maximum number of errors reported together: enough to fix a file in one go. Later errors are often caused by earlier
ones."""

NAMES_AT_MOST = 1000
"""Maximum number of entries of each kind in one file: models, agents, budgets."""

PRICES = ("price_input", "price_output", "price_cached", "price_written")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_UNENCRYPTED = "to another machine over plain http, where others can read it; use https, or a tunnel to 127.0.0.1"
SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")
DEFAULT_TOOLS = ("ask", "clock", "context", "files", "memory", "skills", "terminal")


def home_folder(option: str | None, env: Mapping[str, str]) -> Path:
    """Returns the absolute path of the home folder: `option`, else `TIDEGATE_HOME`, else `~/.tidegate`."""
    chosen = option or env.get("TIDEGATE_HOME") or "~/.tidegate"
    try:
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise Misconfigured(f"the home folder {chosen} cannot be found: {error}; set one with --home DIR") from None


def load(home: Path) -> Config:
    """Reads the configuration of a home folder. If it has no `tidegate.toml`, the defaults are used."""
    file = home / FILE_NAME
    try:
        if not file.exists():
            return read("", home)
        if not file.is_file():
            raise Misconfigured(f"{FILE_NAME}: {file} is not a file; move it away")
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the path is not valid"
        raise Misconfigured(f"{FILE_NAME}: {file} cannot be read ({reason})") from None
    if len(data) > FILE_BYTES:
        raise Misconfigured(f"{FILE_NAME}: {file} is larger than {FILE_BYTES} bytes; it is not a configuration")
    return read(_decode(data), home)


def read(text: str, home: Path) -> Config:
    """Parses the text of a `tidegate.toml`."""
    faults: list[str] = []
    document = _parse(text)
    tables = (*SINGLE, *NAMED, PLUGINS)
    for key in document:
        if key not in tables:
            faults.append(f"there is no table or key {_key(key)!r}{nearest(key, tables)}")
    parts: dict[str, Any] = {name: _table(kind, document.get(name, {}), name, faults) for name, kind in SINGLE.items()}
    models = _named("models", document, faults)
    agents = _named("agents", document, faults)
    budgets = _named("budgets", document, faults)
    mcp = _named("mcp", document, faults)
    plugins = plugin_tables(document.get(PLUGINS, {}), faults)
    demo = not models
    if demo:
        models = {"main": ModelSettings(api="demo")}
    if not agents:
        agents = {"main": AgentSettings(model=_first_chat_model(models), tools=DEFAULT_TOOLS)}
    _check_server(parts["server"], faults)
    _check_web(parts["web"], faults)
    _check_models(models, faults)
    if isinstance(document.get("models", {}), dict):
        _check_agents(agents, models, document.get("agents", {}), faults)
        _check_delegates(agents, faults)
        _check_context(parts, models, faults)
    _check_budgets(budgets, agents, faults)
    _check_mcp(mcp, agents, faults)
    if faults:
        raise Misconfigured(_report(faults))
    return Config(
        home=home.absolute(),
        models=MappingProxyType(models),
        agents=MappingProxyType(agents),
        budgets=MappingProxyType(budgets),
        mcp=MappingProxyType(mcp),
        plugins=plugins,
        demo=demo,
        **parts,
    )


def _first_chat_model(models: Mapping[str, ModelSettings | None]) -> str:
    chat = (name for name, model in models.items() if model is None or model.kind == "chat")
    return "main" if "main" in models else next(chat, next(iter(models)))


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise Misconfigured(f"{FILE_NAME}: line {line}, column {column}: the file is not valid UTF-8") from None


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(_syntax_fault(str(error), text)) from None
    except RecursionError:
        raise Misconfigured(f"{FILE_NAME}: lists or tables are nested too deeply") from None
    except ValueError:
        # int() refuses numbers with thousands of digits, without giving a position.
        raise Misconfigured(f"{FILE_NAME}: a number or date in the file cannot be read") from None


def _syntax_fault(message: str, text: str) -> str:
    found = TOML_PLACE.search(message)
    reason = message[: found.start()] if found else message
    if found and found[1]:
        line, column = int(found[1]), int(found[2])
    else:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    # The parser's message may quote text that could be a secret.
    reason = "the TOML is not valid here" if looks_secret(reason) or len(reason) > 120 else reason
    return f"{FILE_NAME}: line {line}, column {column}: {reason[:1].lower()}{reason[1:]}"


def _report(faults: list[str]) -> str:
    lines = [f"{FILE_NAME}: {fault}" for fault in faults[:FAULTS_SHOWN]]
    if len(faults) > FAULTS_SHOWN:
        lines[-1] = f"{FILE_NAME}: and {len(faults) - FAULTS_SHOWN + 1} more errors"
    return "\n".join(lines)


def _key(key: str) -> str:
    """Formats a key for an error message. Keys that are long or might be secrets are not quoted."""
    if looks_secret(key) or len(key) > 64:
        return f"(a key of {len(key)} characters)"
    return key


def _join(where: str, key: str) -> str:
    shown = _key(key)
    return f"{where}.{shown if BARE_KEY.fullmatch(shown) or shown.startswith('(') else quote(shown)}"


def _table(kind: type[Frozen], table: Any, where: str, faults: list[str]) -> Any:
    """Reads one table as an instance of `kind`. If the table is invalid, returns None and adds the errors to
    `faults`."""
    if not isinstance(table, dict):
        faults.append(f"{where} must be a table, [{where}], not {quote(table)}")
        return None
    before = len(faults)
    settings = settings_of(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if (setting := settings.get(key)) is None:
            faults.append(f"[{where}] has no key {_key(key)!r}{nearest(key, settings)}")
            continue
        try:
            read_value = setting.rule.read(value)
        except InvalidValue as wrong:
            faults.append(f"{where}.{key} {wrong}")
            continue
        values[key] = MappingProxyType(read_value) if isinstance(read_value, dict) else read_value
    for setting in settings.values():
        if setting.default is msgspec.NODEFAULT and setting.name not in table:
            faults.append(f"[{where}] requires the key {setting.name!r}, {setting.rule.shape}")
    return kind(**values) if len(faults) == before else None


def _named(group: str, document: dict[str, Any], faults: list[str]) -> dict[str, Any]:
    """Reads a group's tables, by name. An invalid table becomes None, so that references to it cause no further
    errors."""
    tables = document.get(group, {})
    if not isinstance(tables, dict):
        faults.append(f"{group} must be tables, [{group}.NAME], not {quote(tables)}")
        return {}
    if len(tables) > NAMES_AT_MOST:
        faults.append(f"[{group}] has {len(tables)} entries; at most {NAMES_AT_MOST} are allowed")
        return {}
    found: dict[str, Any] = {}
    for name, table in tables.items():
        where = _join(group, name)
        if not isinstance(table, dict) and name in settings_of(NAMED[group]):
            faults.append(f"{where} must be in a table with a name, such as [{group}.main]")
        elif not NAME.fullmatch(name):
            faults.append(
                f"{where}: a name may have up to 64 letters, digits, '.', '_' and '-', and must start with a letter or "
                "digit"
            )
        found[name] = _table(NAMED[group], table, where, faults) if isinstance(table, dict) else None
        if not isinstance(table, dict) and name not in settings_of(NAMED[group]):
            faults.append(f"{where} must be a table, [{where}], not {quote(table)}")
    return found


def _check_server(server: ServerSettings | None, faults: list[str]) -> None:
    if server is None:
        return
    if not re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?", server.host):
        faults.append(f"server.host must be an IP address or a host name, not {quote(server.host)}")
    elif (server.tls_cert is None) != (server.tls_key is None):
        missing = "tls_cert" if server.tls_cert is None else "tls_key"
        faults.append(f"[server] also requires the key {missing!r}; set both tls_cert and tls_key, or neither")
    elif not is_loopback(server.host) and server.tls_cert is None and not server.insecure:
        faults.append(
            f"server.host {quote(server.host)} can be reached from other machines; set server.tls_cert and "
            "server.tls_key, or server.insecure = true if a proxy in front of it provides TLS"
        )


def _check_web(web: WebSettings | None, faults: list[str]) -> None:
    if web is None or web.search == "none":
        return
    needed = "search_url" if web.search == "searxng" else "search_key"
    if not getattr(web, needed):
        faults.append(f"[web] requires the key {needed!r} with search = {quote(web.search)}")
    if web.search_key is not None and _is_open(web.search_url):
        faults.append(f"[web] search_url would send 'search_key' {_UNENCRYPTED}")


def _check_models(models: dict[str, ModelSettings | None], faults: list[str]) -> None:
    for name, model in models.items():
        if model is None:
            continue
        where = _join("models", name)
        faults += (f"[{where}] {fault}" for fault in _model_faults(model))


_CHAT_ONLY = ("max_output", "vision", "audio", "thinking", "efforts", "price_cached", "price_written")
_OTHERS_ONLY = {
    "dimensions": "embeddings",
    "voice": "speech",
    "price_minute": "transcription",
    "price_characters": "speech",
}
LEAST_WINDOW = 1024
"""The smallest context window of a chat model, in tokens."""


def _kind_faults(model: ModelSettings) -> Iterator[str]:
    """Yields the keys that do not apply to the kind of the model, or that are missing."""
    for key, kind in (*((key, "chat") for key in _CHAT_ONLY), *_OTHERS_ONLY.items()):
        if getattr(model, key) not in (None, "") and model.kind != kind:
            apis = " or ".join(quote(api) for api, its in MODEL_KINDS.items() if its == kind and api != "demo")
            yield f"has the key {key!r}, which is only valid for api = {apis}, not {quote(model.api)}; remove it"
    if model.kind == "speech" and not model.voice:
        yield f"requires the key 'voice' with api = {quote(model.api)}"
    if model.kind == "chat" and model.context_window is not None and model.context_window < LEAST_WINDOW:
        yield f"has a 'context_window' below {LEAST_WINDOW}, which is too small for a chat model"
    if model.kind in ("transcription", "speech") and model.context_window is not None:
        yield f"has the key 'context_window', which does not apply to api = {quote(model.api)}; remove it"


def _model_faults(model: ModelSettings) -> Iterator[str]:
    yield from _kind_faults(model)
    if model.api != "demo":
        for key in ("base_url", "model"):
            if not getattr(model, key):
                yield f"requires the key {key!r} with api = {quote(model.api)}"
    if model.key is not None and model.keys:
        yield "has both 'key' and 'keys'; remove one of them"
    secret = model.key is not None or model.keys or any(map(is_reference, model.headers.values()))
    if secret and _is_open(model.base_url):
        yield f"base_url would send its key {_UNENCRYPTED}"
    if model.cache_ttl is not None and model.api != "anthropic":
        yield f"has the key 'cache_ttl', which is only valid for api = \"anthropic\", not {quote(model.api)}; remove it"
    if model.context_window is not None and (model.max_output or 0) > model.context_window:
        yield f"has a 'max_output' larger than its 'context_window', {model.context_window}; lower it"
    prices = [key for key in PRICES if getattr(model, key) is not None]
    for needed in ("price_input",) if model.kind == "embeddings" else ("price_input", "price_output"):
        if prices and needed not in prices:
            yield f"has {prices[0]!r} and therefore also requires the key {needed!r}"


def _is_open(url: str) -> bool:
    """True if other machines on the network can read requests to this address."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _check_agents(
    agents: dict[str, AgentSettings | None],
    models: dict[str, ModelSettings | None],
    tables: Any,
    faults: list[str],
) -> None:
    for name, agent in agents.items():
        if agent is None:
            continue
        where = _join("agents", name)
        for spare in agent.fallback:
            if (fault := _wrong_kind(models.get(spare), "chat")) is not None:
                faults.append(f"[{where}] fallback contains {_key(spare)!r}, which {fault}")
            elif spare == agent.model:
                faults.append(
                    f"[{where}] fallback contains {_key(spare)!r}, which is already its 'model'; remove it from the "
                    "list"
                )
            elif spare not in models:
                faults.append(
                    f"[{where}] fallback contains {_key(spare)!r}, but there is no [models.{_key(spare)}]"
                    f"{nearest(spare, models)}"
                )
        if (fault := _wrong_kind(models.get(agent.model), "chat")) is not None:
            faults.append(f"{where}.model is {_key(agent.model)!r}, which {fault}")
        if agent.model in models:
            continue
        explicit = "model" in tables[name]
        missing = f"does not exist: there is no [models.{_key(agent.model)}]{nearest(agent.model, models)}"
        faults.append(f"{where}.model {'' if explicit else 'is not set, and its default '}{missing}")


def _wrong_kind(model: ModelSettings | None, kind: ModelKindName) -> str | None:
    """Returns what is wrong with a reference to this model if another kind of model is needed. Otherwise, returns
    None."""
    if model is None or model.kind == kind:
        return None
    shown = {"chat": "a chat model"}
    is_now = shown.get(model.kind, f"a model for {model.kind}")
    return f"is {is_now} (api = {quote(model.api)}); name {shown.get(kind, f'a model for {kind}')} instead"


def _check_delegates(agents: dict[str, AgentSettings | None], faults: list[str]) -> None:
    for name, agent in agents.items():
        for other in agent.delegates if agent is not None else ():
            if other not in agents:
                missing = f"there is no [agents.{_key(other)}]{nearest(other, agents)}"
                faults.append(f"[{_join('agents', name)}] delegates contains {_key(other)!r}, but {missing}")


def _check_context(parts: Mapping[str, Any], models: dict[str, ModelSettings | None], faults: list[str]) -> None:
    """Checks that the models for summaries and notes exist, and that the thresholds are in ascending order."""
    for table in ("context", "memory"):
        if parts[table] is not None and (name := parts[table].model) and name not in models:
            faults.append(f"[{table}] model does not exist: there is no [models.{_key(name)}]{nearest(name, models)}")
        elif parts[table] is not None and (fault := _wrong_kind(models.get(name), "chat")) is not None:
            faults.append(f"[{table}] model is {_key(name)!r}, which {fault}")
    context = parts["context"]
    if context is not None and (name := context.embeddings):
        if name not in models:
            missing = f"does not exist: there is no [models.{_key(name)}]{nearest(name, models)}"
            faults.append(f"[context] embeddings {missing}")
        elif (fault := _wrong_kind(models[name], "embeddings")) is not None:
            faults.append(f"[context] embeddings is {_key(name)!r}, which {fault}")
        if context.index:
            faults.append("[context] has both 'index' and 'embeddings', but searches use only one; remove one of them")
    if context is not None and not context.keep < context.soft <= context.hard:
        faults.append(
            "[context] requires keep < soft <= hard, not "
            f"{context.keep:g}, {context.soft:g} and {context.hard:g}; change one of them"
        )


def _check_budgets(
    budgets: dict[str, BudgetSettings | None], agents: dict[str, AgentSettings | None], faults: list[str]
) -> None:
    for name, budget in budgets.items():
        if budget is not None:
            where = _join("budgets", name)
            faults += (f"[{where}] {fault}" for fault in _budget_faults(budget, agents))


def _budget_faults(budget: BudgetSettings, agents: Mapping[str, AgentSettings | None]) -> Iterator[str]:
    if budget.tokens is None and budget.money is None:
        yield "requires a limit, the key 'tokens' or 'money'"
    if budget.per == "turn" and budget.each is not None:
        yield "has the key 'each', which does not apply to a budget per turn; remove it"
    if budget.per != "turn" and budget.each is None:
        yield f'requires the key \'each\' with per = {quote(budget.per)}: "hour", "day", "month" or "total"'
    if budget.only and budget.per not in ("principal", "agent", "job"):
        yield f'has the key \'only\', which requires per = "principal", "agent" or "job", not {quote(budget.per)}'
    for agent in budget.only if budget.per == "agent" else ():
        if agent not in agents:
            yield f"only contains {_key(agent)!r}, but there is no [agents.{_key(agent)}]{nearest(agent, agents)}"


def _check_mcp(
    servers: dict[str, McpSettings | None], agents: Mapping[str, AgentSettings | None], faults: list[str]
) -> None:
    for name, server in servers.items():
        where = _join("mcp", name)
        if not SERVER_NAME.fullmatch(name) or "__" in name:
            faults.append(
                f"{where}: the name of an MCP server may have up to 24 letters, digits, '_' and '-', without '__', "
                "since the names of its tools begin with it"
            )
        if server is not None:
            faults += (f"[{where}] {fault}" for fault in _mcp_faults(server, agents))


def _mcp_faults(server: McpSettings, agents: Mapping[str, AgentSettings | None]) -> Iterator[str]:
    if bool(server.command) == bool(server.url):
        yield "requires either the key 'command' or the key 'url'"
    if server.url:
        for key in ("args", "env", "cwd", "read_only"):
            if getattr(server, key):
                yield f"has the key {key!r}, which requires 'command'; remove it"
        if (server.token or any(map(is_reference, server.headers.values()))) and _is_open(server.url):
            yield f"url would send its credentials {_UNENCRYPTED}"
    elif server.token or server.headers:
        yield "has the key 'token' or 'headers', which requires 'url'; use 'env' for a program"
    if server.token and any(name.lower() == "authorization" for name in server.headers):
        yield "has 'token' and a header 'authorization'; remove one of them"
    if server.start == "eager" and server.scope != "process":
        yield f'has start = "eager", which requires scope = "process", not {quote(server.scope)}'
    for agent in server.agents:
        if agent not in agents:
            yield f"agents contains {_key(agent)!r}, but there is no [agents.{_key(agent)}]{nearest(agent, agents)}"
