"""Models behind https: trusted authorities, the error for others, and one TLS context for all models."""

import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.http_client.authority import Authority, needs_openssl

pytestmark = [pytest.mark.anyio, needs_openssl]

WAIT = 60


class Served:
    """Models behind https; `trusted` have a certificate for their address."""

    def __init__(self, authority: Authority, trusted: list[ScriptedModel], misnamed: ScriptedModel) -> None:
        self.authority = authority
        self.trusted = trusted
        self.misnamed = misnamed


@pytest.fixture
async def served(tmp_path: Path) -> Any:
    authority = await anyio.to_thread.run_sync(Authority, tmp_path / "ca")
    right = await anyio.to_thread.run_sync(authority.context, "IP:127.0.0.1")
    wrong = await anyio.to_thread.run_sync(authority.context, "DNS:elsewhere.example")
    async with AsyncExitStack() as stack:
        models = [await stack.enter_async_context(ScriptedModel(tls=tls)) for tls in (right, right, wrong)]
        yield Served(authority, models[:2], models[2])


async def asked(*models: ScriptedModel, trusting: Path | None = None) -> list[Any]:
    """The results of a new process that calls these models, and its TLS statistics last."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}
    if trusting is not None:
        environment["SSL_CERT_FILE"] = str(trusting)
    command = [sys.executable, "-m", "tests.models.tls_client", *(model.base_url for model in models)]
    with anyio.fail_after(WAIT):
        ran = await anyio.run_process(command, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return [json.loads(line) for line in ran.stdout.splitlines()]


def is_refused(answer: Any, model: ScriptedModel) -> None:
    """Whether the failure is one sentence with advice, without a retry, and before anything was sent."""
    assert (answer["kind"], answer["retryable"]) == ("network", False)
    assert f"the TLS connection to {model.base_url}" in answer["message"]
    assert "check base_url and the server's certificate." in answer["message"]
    assert not model.recorded, "no request, and with it no key, goes to who cannot prove its name"


async def test_endpoints_of_a_trusted_authority_share_one_context(served: Served) -> None:
    """H22: several endpoints, several times; a certificate for another name is refused."""
    one, two = served.trusted
    *answers, refused, made = await asked(one, two, one, served.misnamed, trusting=served.authority.certificate)
    assert [answer["text"] for answer in answers] == ["The tide comes in, the gate keeps the level."] * 3
    assert all(request.headers["host"] == one.root.removeprefix("https://") for request in one.recorded)
    is_refused(refused, served.misnamed)
    assert made["contexts"] <= 1


async def test_an_endpoint_of_an_unknown_authority_is_refused(served: Served) -> None:
    """H22: at once, before anything is sent, with a sentence that says what to check."""
    one, _ = served.trusted
    refused, _ = await asked(one)
    is_refused(refused, one)
    assert one.counts["connections"] <= 1, "it was not tried again"
