"""Whatever a file contains, the result is a configuration or `Misconfigured`, and no secret in it is repeated."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.project.quick import example_count
from tidegate.config import Config, load, read, show
from tidegate.config.settings import NAMED, SINGLE
from tidegate.config.tables.declarations import settings_of
from tidegate.errors import Misconfigured

HOME = Path("/srv/gate")
CANARIES = (
    "sk-canary-0123456789abcdef",
    "canary" + "Zq7" * 12,
    "tg_" + "c4nary" * 7,
    "Bearer c4nary-token-value",
    "ghp_canary0123456789canary",
)
KEYS = sorted(
    {*SINGLE, *NAMED, *(name for kind in (*SINGLE.values(), *NAMED.values()) for name in settings_of(kind)), "main"}
)

scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**400), max_value=10**400),
    st.floats(),
    st.text(max_size=60),
    st.sampled_from(["never", "12h", "64 MiB", "demo", "openai-chat", "env:A", "file:b", "http://[", "https://u:p@h"]),
    st.datetimes().map(lambda when: when.replace(microsecond=0)),
)
keys = st.one_of(st.sampled_from(KEYS), st.sampled_from(KEYS), st.text(max_size=20))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)
documents = st.dictionaries(keys, st.one_of(st.dictionaries(keys, values, max_size=6), values), max_size=5)


def toml(value: Any) -> str:
    """Any value as TOML, independently of the writer under test."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        plain = value.encode("utf-8", "replace").decode()
        return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    return str(value.isoformat())


def attempt(text: str) -> Config | str:
    try:
        return read(text, HOME)
    except Misconfigured as error:
        for line in error.message.split("\n"):
            assert line.startswith("tidegate.toml: "), line
            assert len(line) < 700
        assert len(error.message.split("\n")) <= 10
        return error.message


@given(documents)
@settings(max_examples=example_count(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_document_gives_a_configuration_or_a_clear_refusal(document: dict[str, Any]) -> None:
    result = attempt("\n".join(f"{toml(key)} = {toml(value)}" for key, value in document.items()))
    if isinstance(result, Config):
        assert read(show(result), HOME) == result


@given(st.text(alphabet="[]{}=.\"'#, \n\tabc019-+:_e\\ué🌊", max_size=80))
@settings(max_examples=example_count(150), deadline=None)
def test_any_text_gives_a_configuration_or_a_clear_refusal(text: str) -> None:
    assert attempt(text)


@given(st.binary(max_size=200))
@settings(max_examples=example_count(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_a_configuration_or_a_clear_refusal(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tidegate.toml").write_bytes(data)
    try:
        assert load(tmp_path).home == tmp_path
    except Misconfigured as error:
        assert all("tidegate.toml: " in line and len(line) < 700 for line in error.message.split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "9" * 10000,
        "[server]\nport = 0x" + "f" * 9000,
        "[" + "a." * 3000 + "a]",
    ],
)
def test_text_made_to_exhaust_the_reader_is_refused(text: str) -> None:
    assert isinstance(attempt(text), str)


@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("table", [*SINGLE, "models.main", "agents.main"])
def test_a_secret_in_the_wrong_place_is_not_repeated(canary: str, table: str) -> None:
    """X15: under any key, and as a key or a name itself, no message shows it."""
    quoted = json.dumps(canary)
    kind = SINGLE.get(table) or NAMED[table.split(".", 1)[0]]
    places = [f"[{table}]\n{name} = {value}" for name in settings_of(kind) for value in (quoted, f"[{quoted}]")]
    places += [
        f"[{table}]\napi_key = {quoted}",
        f"[{table}]\n{quoted} = 1",
        f"{quoted} = 1",
        f"[{table}]\nport = {canary}",
    ]
    places += [f"[models.{quoted}]\napi = 'x'", f"[agents.{quoted}]\nmodel = 3", f"[agents.a]\nmodel = {quoted}"]
    places += [f"[{table}]\n{quoted} = 1\n{quoted} = 2", f"[models.m]\napi='demo'\nheaders = {{ X-Any = {quoted} }}"]
    for text in places:
        result = attempt(text)
        if isinstance(result, str):
            assert canary not in result, text


@pytest.mark.parametrize("canary", [*CANARIES, "short", "env:not a name", "env:", "file:", "FILE:x", "hunter2"])
def test_a_literal_secret_is_refused_wherever_a_reference_belongs(canary: str) -> None:
    """X15, X22: keys are given by reference, and the error does not repeat the secret."""
    base = "[models.main]\napi = 'openai-chat'\nbase_url = 'http://h/v1'\nmodel = 'm'\n"
    quoted = json.dumps(canary)
    for line in (f"key = {quoted}", f"keys = ['env:A', {quoted}]", f"headers = {{ Authorization = {quoted} }}"):
        result = attempt(base + line)
        assert isinstance(result, str)
        assert "reference" in result
        assert canary not in result.replace('"env:NAME" or "file:PATH"', "")


@pytest.mark.parametrize(
    "address",
    [
        "https://user:hunter2@h/v1",
        "https://h/v1?key=hunter2",
        "https://h/v1#hunter2",
        "ftp://hunter2",
        "hunter2",
        "https://",
        "http://h:99999/hunter2",
        "http://h h/hunter2",
        "https://h/sk-hunter2-0123456789abc/v1",
    ],
)
def test_an_address_must_not_contain_a_secret(address: str) -> None:
    """X15: addresses are shown and logged."""
    result = attempt(f"[models.main]\napi = 'openai-chat'\nmodel = 'm'\nbase_url = {json.dumps(address)}")
    assert isinstance(result, str)
    assert "models.main.base_url must" in result
    assert "hunter2" not in result


def test_no_credential_is_taken_from_the_environment_implicitly(monkeypatch: pytest.MonkeyPatch) -> None:
    """X22: a key in the environment is not used unless the configuration names it."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARIES[0])
    config = read("[models.main]\napi = 'openai-chat'\nbase_url = 'http://h/v1'\nmodel = 'm'", HOME)
    assert config.models["main"].key is None
    assert CANARIES[0] not in show(config) + repr(config)
