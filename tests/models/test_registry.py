"""The configured models: built from their settings alone, and distinguished by a signature that reveals nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.support import CANARY, ScriptedModel, ask, configured, settings
from tidegate.config import ModelSettings
from tidegate.errors import Misconfigured
from tidegate.http_client import HttpClient
from tidegate.models import Model, Models
from tidegate.security import Secret

pytestmark = pytest.mark.anyio

BASE: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "key": "env:A"}
SECRETS = {"env:A": "sk-long-shared-prefix-1", "env:B": "sk-long-shared-prefix-2", "env:bad": "two\nlines"}


def resolve(reference: str) -> Secret:
    return Secret(SECRETS[reference])


async def signature(**given: Any) -> bytes:
    async with Models({"main": settings(**{**BASE, **given})}, HttpClient(), resolve, 1000) as models:
        return models.get("main").signature


async def test_equal_settings_have_equal_signatures() -> None:
    """A2: also when built again."""
    assert await signature() == await signature()


@pytest.mark.parametrize(
    "other",
    [
        {"base_url": "http://127.0.0.1:2/v1"},
        {"key": "env:B"},
        {"key": None},
        {"headers": {"X-Org": "1"}},
        {"headers": {"X-Secret": "env:A"}},
    ],
)
async def test_another_endpoint_or_credential_has_another_signature(other: dict[str, Any]) -> None:
    """A2: also for two keys with a common prefix."""
    assert await signature() != await signature(**other)


async def test_model_and_api_are_in_the_signature() -> None:
    """A2: the provider's model, and the API."""
    one = ModelSettings(api="openai-chat", base_url="http://127.0.0.1:1/v1", model="one")
    two = ModelSettings(api="openai-chat", base_url="http://127.0.0.1:1/v1", model="two")
    demo = ModelSettings(api="demo")
    async with Models({"a": one, "b": two, "c": demo}, HttpClient(), resolve, 1000) as models:
        assert len({models.get(name).signature for name in models.names}) == 3


async def test_timeouts_and_retries_are_not_in_the_signature() -> None:
    """A3: these settings change in place and keep the resident."""
    assert await signature() == await signature(retries=9, idle_timeout=1.0, first_byte_timeout=2.0)


async def test_the_credential_cannot_be_read_from_signature_or_model() -> None:
    """A2, X15: not in any printed form."""
    async with configured("http://127.0.0.1:1/v1", key="env:CANARY") as model:
        assert CANARY.encode() not in model.signature
        assert len(model.signature) == 32
        assert CANARY not in repr(model) + str(model)


async def test_no_key_proxy_or_login_is_taken_from_the_environment(
    server: ScriptedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """X22: only what the configuration names is used."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {CANARY}\n")
    for name, value in {
        "OPENAI_API_KEY": CANARY,
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
        "NETRC": str(netrc),
    }.items():
        monkeypatch.setenv(name, value)
    async with configured(server.base_url) as model:
        await ask(model, "hello")
    assert [request.authorization for request in server.recorded] == [""]
    assert CANARY not in str(server.recorded[0].headers)


async def test_the_configured_key_is_sent(server: ScriptedModel) -> None:
    """X22: and no other."""
    async with configured(server.base_url, key="env:CANARY") as model:
        await ask(model, "hello")
    assert server.recorded[0].authorization == f"Bearer {CANARY}"


@pytest.mark.parametrize("field", ["base_url", "model"])
async def test_a_model_without_address_or_name_is_refused_at_the_start(field: str) -> None:
    given: dict[str, Any] = {"base_url": "http://127.0.0.1:1/v1", "model": "m", field: ""}
    with pytest.raises(Misconfigured, match=field):
        async with Models({"main": ModelSettings(api="openai-chat", **given)}, HttpClient(), resolve, 1000):
            pass


async def test_a_key_that_no_header_may_carry_is_refused_without_quoting_it() -> None:
    """X15: the message names the reference, not the value."""
    with pytest.raises(Misconfigured) as caught:
        await signature(key="env:bad")
    assert "env:bad" in caught.value.message
    assert "two" not in caught.value.message


async def test_the_error_for_an_unknown_model_lists_the_known_ones() -> None:
    async with Models({"a": ModelSettings(api="demo")}, HttpClient(), resolve, 1000) as models:
        model: Model = models.get("a")
        assert model.name == "a"
        with pytest.raises(Misconfigured, match="the configured chat models are: a"):
            models.get("b")


def test_no_provider_package_is_imported() -> None:
    """The gateway implements the wire formats itself; the providers' packages are for tests only."""
    code = (
        "import importlib, pkgutil, sys, tidegate.models as models\n"
        "for found in pkgutil.walk_packages(models.__path__, 'tidegate.models.'): importlib.import_module(found.name)\n"
        "print(sorted({'openai', 'httpx', 'anthropic', 'pydantic', 'aiohttp', 'requests'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


async def test_the_name_of_the_demo_model_is_reserved() -> None:
    """X22: usage under that name would not be charged after a restart."""
    given = ModelSettings(api="openai-chat", base_url="http://127.0.0.1:9/v1", model="demo")
    async with HttpClient() as clients:
        with pytest.raises(Misconfigured, match=r"\[models.main\] model = \"demo\" is reserved .* use another name"):
            async with Models({"main": given}, clients, Secret, 1000):
                pass
