"""The OpenAPI description, and that the endpoints conform to it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

from bench.scripted_model import ScriptedModel
from tests.in_process import WAIT, InProcessGateway, in_process_gateway
from tests.web.client import call
from tidegate.web.chat.completions import CHAT

pytestmark = pytest.mark.anyio

EXAMPLES = 4
"""Per endpoint: enough to try every parameter with good and bad values; the whole stays within seconds."""
STREAMS = "/api/sessions/{id}/events"


@pytest.fixture
async def demo(home: Path) -> AsyncIterator[InProcessGateway]:
    async with in_process_gateway(home) as running:
        yield running


async def test_the_description_names_every_endpoint(gateway: InProcessGateway) -> None:
    """H20: OpenAPI 3.1, from the same table as the routes; every operation describes its errors."""
    reply = await call(gateway, "GET", "/openapi.json", key="")
    assert reply.status == 200
    described = reply.json
    assert described["openapi"] == "3.1.0"
    served = {endpoint.path.replace(":path", "") for endpoint in gateway.app.endpoints} | {CHAT.path}
    assert set(described["paths"]) == served
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, (path, method)
    error = described["components"]["schemas"]["ErrorBody"]
    assert set(error["required"]) == {"message", "type", "param", "code"}
    assert described["paths"]["/healthz"]["get"].get("security") is None
    assert described["paths"]["/api/sessions"]["get"]["security"] == [{"key": []}]


async def test_every_endpoint_conforms_to_its_description(demo: InProcessGateway) -> None:
    """H20: with generated input, good and bad, nothing answers 5xx or violates its schema."""
    described = (await call(demo, "GET", "/openapi.json")).json
    first = await call(demo, "POST", "/api/messages", json={"text": "hello"})
    await demo.service.wait(first.json["turn"])
    with anyio.fail_after(10 * WAIT):
        tried = await anyio.to_thread.run_sync(_try_everything, described, demo)
    assert tried >= EXAMPLES * 10


def _try_everything(described: dict[str, Any], h: InProcessGateway) -> int:
    schema = schemathesis.openapi.from_dict(described)
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == STREAMS:
            continue

        @hypothesis_settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case: schemathesis.Case) -> None:
            nonlocal tried
            tried += 1
            headers = {"Authorization": f"Bearer {h.key}"}
            response = case.call(base_url=h.url, headers=headers, timeout=WAIT)
            assert response.status_code < 500, (case, response.text)
            case.validate_response(response, checks=(
                schemathesis.checks.not_a_server_error,
                schemathesis.specs.openapi.checks.response_schema_conformance,
                schemathesis.specs.openapi.checks.content_type_conformance,
                schemathesis.specs.openapi.checks.status_code_conformance,
            ))  # fmt: skip

        given(case=operation.as_strategy())(one)()
    return tried


async def test_the_types_of_the_page_and_the_terminal_are_described(gateway: InProcessGateway) -> None:
    """H20: the values of `how` and `state` are described."""
    schemas = (await call(gateway, "GET", "/openapi.json")).json["components"]["schemas"]
    assert set(schemas["AcceptedAnswer"]["properties"]["how"]["enum"]) >= {"started", "queued", "steered"}
    assert "answered" in schemas["Outcome"]["properties"]["state"]["enum"]
    assert "channel" not in schemas["MessageIn"]["properties"]
    assert set(schemas["KeyIn"]["properties"]["role"]["anyOf"][0]["enum"]) == {"owner", "admin", "member", "guest"}
    for answer in ("SessionsAnswer", "MessagesAnswer", "SettingsAnswer"):
        assert "next" in schemas[answer]["required"]
    assert schemas["AgentView"]["properties"]["demo"]["type"] == "boolean"


async def test_a_chat_request_is_described_with_its_headers(gateway: InProcessGateway, model: ScriptedModel) -> None:
    """H03, H13, H16, H17: with the types of its body."""
    operation = (await call(gateway, "GET", "/openapi.json")).json["paths"]["/v1/chat/completions"]["post"]
    names = {parameter["name"] for parameter in operation["parameters"]}
    assert names == {"X-Session-Id", "X-Busy", "X-On-Disconnect", "X-Events", "Idempotency-Key"}
    assert {"200", "202", "400", "401", "404", "409", "413", "422", "429", "502", "503", "504"} <= set(
        operation["responses"]
    )
