"""Failures of endpoints, mapped to ModelFailed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.http_client import ConnectionFailed, Trouble
from tidegate.models.http.endpoint_failures import QUOTE_CHARACTERS, FailureMapper
from tidegate.models.http.error_body import LONGEST_WAIT, retry_after_of
from tidegate.security import Redactor, Secret

NOW = 1_700_000_000.0
SECRET = "canary-4f9d1c77-key"
COMPLAIN = FailureMapper("main", "http://127.0.0.1:1/v1/chat/completions", Redactor([Secret(SECRET)]).text)


def _openai(message: str, code: str | None = None, type: str = "invalid_request_error") -> str:
    return json.dumps({"error": {"message": message, "type": type, "param": None, "code": code}})


def _anthropic(type: str, message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": type, "message": message}, "request_id": "req_011"})


def _gemini(code: int, status: str, message: str, *details: dict[str, object]) -> str:
    return json.dumps([{"error": {"code": code, "message": message, "status": status, "details": list(details)}}])


def _quota_of(period: str) -> dict[str, object]:
    metric = f"GenerateRequestsPer{period}PerProjectPerModel-FreeTier"
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": metric}]}


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["message", "type", "code", "details", "metadata", "innererror", "retryDelay", "raw"])
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)


_EXHAUSTED = "You exceeded your current quota, please check your plan and billing details."
_TOO_MANY = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41000."

BODIES = [
    # OpenAI, chat and responses
    (401, _openai("Incorrect API key provided: sk-…", "invalid_api_key"), "authorisation", False, "key"),
    (403, _openai("Country not supported", "unsupported_country_region_territory"), "authorisation", False, "key"),
    (429, _openai(_EXHAUSTED, "insufficient_quota", "insufficient_quota"), "quota", False, "quota"),
    (429, _openai("Rate limit reached for gpt-4o", "rate_limit_exceeded", "requests"), "rate", True, "wait"),
    (429, _openai(_TOO_MANY, "rate_limit_exceeded", "tokens"), "invalid", False, "too large"),
    (400, _openai("Billing hard limit has been reached", "billing_hard_limit_reached"), "quota", False, "quota"),
    (400, _openai("Your input exceeds the context window", "context_length_exceeded"), "context", False, "too long"),
    (400, _openai("Rejected by our safety system.", "content_policy_violation"), "content", False, "rephrase"),
    (400, _openai("Invalid prompt: flagged as violating our usage policies", "invalid_prompt"), "content", False, "re"),
    (400, _openai("Could not be verified.", "invalid_encrypted_content"), "invalid", False, "reasoning"),
    (400, _openai("Unsupported parameter: 'max_tokens'", "unsupported_parameter"), "invalid", False, "settings"),
    (404, _openai("The model `gpt-9` does not exist", "model_not_found"), "invalid", False, "`model`"),
    (500, _openai("The server had an error", None, "server_error"), "overloaded", True, "try again later"),
    (503, _openai("That model is currently overloaded", None, "server_error"), "overloaded", True, "try again later"),
    # Anthropic
    (401, _anthropic("authentication_error", "invalid x-api-key"), "authorisation", False, "key"),
    (403, _anthropic("permission_error", "No permission"), "authorisation", False, "key"),
    (402, _anthropic("billing_error", "Payment required"), "quota", False, "quota"),
    (400, _anthropic("invalid_request_error", "Your credit balance is too low to access"), "quota", False, "quota"),
    (400, _anthropic("invalid_request_error", "You have reached your API usage limits."), "quota", False, "quota"),
    (400, _anthropic("invalid_request_error", "This organization has been disabled."), "authorisation", False, "key"),
    (429, _anthropic("rate_limit_error", "This request would exceed your rate limit"), "rate", True, "wait"),
    (529, _anthropic("overloaded_error", "Overloaded"), "overloaded", True, "try again later"),
    (500, _anthropic("api_error", "Internal server error"), "overloaded", True, "try again later"),
    (504, _anthropic("timeout_error", "Request timed out"), "timeout", True, "timed out"),
    (413, _anthropic("request_too_large", "Request exceeds the maximum size"), "invalid", False, "too large"),
    (400, _anthropic("invalid_request_error", "prompt is too long: 208310 tokens > 200000"), "context", False, "long"),
    (
        400,
        _anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit: 199000 + 8192"),
        "context",
        False,
        "too long",
    ),
    (
        400,
        _anthropic("invalid_request_error", "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum"),
        "invalid",
        False,
        "smaller pictures",
    ),
    (
        400,
        _anthropic("invalid_request_error", "At least one of the image dimensions exceed max allowed size: 8000"),
        "invalid",
        False,
        "smaller pictures",
    ),
    (
        400,
        _anthropic("invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block"),
        "invalid",
        False,
        "reasoning",
    ),
    *(
        (400, _anthropic("invalid_request_error", f"messages.1.content.0{said}"), "invalid", False, "reasoning")
        for said in (
            ": Invalid `data` in `redacted_thinking` block",
            ": `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
            ".thinking.signature: Field required",
        )
    ),
    (400, _anthropic("invalid_request_error", "Output blocked by content filtering policy"), "content", False, "re"),
    (400, _anthropic("invalid_request_error", "max_tokens: Field required"), "invalid", False, "settings"),
    (404, _anthropic("not_found_error", "model: claude-none"), "invalid", False, "`model`"),
    # Gemini
    (400, _gemini(400, "INVALID_ARGUMENT", "x", {"reason": "API_KEY_INVALID"}), "authorisation", False, "key"),
    (403, _gemini(403, "PERMISSION_DENIED", "Permission denied"), "authorisation", False, "key"),
    (429, _gemini(429, "RESOURCE_EXHAUSTED", _EXHAUSTED, _quota_of("Minute")), "rate", True, "wait"),
    (429, _gemini(429, "RESOURCE_EXHAUSTED", _EXHAUSTED, _quota_of("Day")), "quota", False, "quota"),
    (
        400,
        _gemini(400, "INVALID_ARGUMENT", "The input token count (1200000) exceeds the maximum number of tokens"),
        "context",
        False,
        "too long",
    ),
    (503, _gemini(503, "UNAVAILABLE", "The model is overloaded."), "overloaded", True, "try again later"),
    # OpenRouter
    (402, '{"error":{"code":402,"message":"Insufficient credits"}}', "quota", False, "quota"),
    (
        403,
        '{"error":{"code":403,"message":"Your input was flagged","metadata":{"reasons":["violence"]}}}',
        "content",
        False,
        "rephrase",
    ),
    (
        400,
        '{"error":{"code":400,"message":"Provider returned error",'
        '"metadata":{"raw":"{\\"error\\":{\\"message\\":\\"prompt is too long\\"}}","provider_name":"x"}}}',
        "context",
        False,
        "too long",
    ),
    (429, '{"error":{"code":429,"message":"Provider returned error"}}', "rate", True, "wait"),
    (404, '{"error":{"code":404,"message":"No endpoints found that support image input"}}', "invalid", False, "vision"),
    (502, '{"error":{"code":502,"message":"Your chosen model is down"}}', "overloaded", True, "try again later"),
    (408, '{"error":{"code":408,"message":"Your request timed out"}}', "timeout", True, "timed out"),
    # Azure
    (401, '{"statusCode":401,"message":"Unauthorized. Access token is missing."}', "authorisation", False, "key"),
    (
        400,
        '{"error":{"code":"BadRequest","message":"x","innererror":{"code":"ResponsibleAIPolicyViolation"}}}',
        "content",
        False,
        "rephrase",
    ),
    (404, '{"error":{"code":"DeploymentNotFound","message":"x"}}', "invalid", False, "`model`"),
    (429, '{"error":{"code":"429","message":"Exceeded token rate limit of your tier."}}', "rate", True, "wait"),
    # others, and local servers
    (403, '{"code":"forbidden","error":"Your team has used all available credits"}', "quota", False, "quota"),
    (413, _openai(_TOO_MANY, "rate_limit_exceeded", "tokens"), "invalid", False, "too large"),
    (413, "<html>413 Request Entity Too Large</html>", "invalid", False, "too large"),
    (
        400,
        '{"error":{"code":400,"message":"it exceeds the available context size","type":"exceed_context_size_error"}}',
        "context",
        False,
        "too long",
    ),
    (
        400,
        '{"object":"error","message":"This model\'s maximum context length is 4096","type":"BadRequestError"}',
        "context",
        False,
        "too long",
    ),
    (404, '{"error":"model \'x\' not found"}', "invalid", False, "`model`"),
    (
        503,
        '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
        "overloaded",
        True,
        "try again later",
    ),
    (498, "{}", "overloaded", True, "try again later"),
    (524, "<html>", "timeout", True, "timed out"),
    (501, "", "invalid", False, "`api`"),
    (422, '{"detail":[{"loc":["body"],"msg":"field required"}]}', "invalid", False, "settings"),
]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "-1e999"}, None),
        ({"retry-after": "9" * 30}, LONGEST_WAIT),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_WAIT),
    ],
)
def test_retry_after_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_of(headers, NOW) == seconds


@given(st.integers(min_value=100, max_value=599), st.binary(max_size=200))
def test_any_error_body_becomes_a_failure_in_one_short_line(status: int, body: bytes) -> None:
    failure = COMPLAIN.of_status(status, body, {}, NOW)
    assert "\n" not in failure.message
    assert len(failure.message) < QUOTE_CHARACTERS + 200
    assert failure.upstream_status == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"the words","type":"t","code":null}}',
        b'{"error":"the words"}',
        b'{"message":"the words"}',
        b'{"detail":"the words"}',
        b'[{"error":{"message":"the words","code":400}}]',
        b'{"detail":[{"msg":"the words","type":"t"}]}',
        b'{"detail":["the words"]}',
        b'{"detail":{"msg":"the words","loc":[]}}',
        b'{"detail":{"message":"the words"}}',
        b"the words",
    ],
)
def test_the_endpoints_message_is_quoted_from_any_shape(body: bytes) -> None:
    assert COMPLAIN.of_status(400, body, {}, NOW).message.endswith("It said: the words")


def test_validation_errors_are_quoted_with_their_location() -> None:
    """H22: FastAPI's shape, as many compatible servers have it; bounded for any list."""
    detail = [{"loc": ["body", "messages", 0], "msg": "Input should be a string"}, {"msg": "another"}, 7, {"msg": 1}]
    said = COMPLAIN.of_status(422, json.dumps({"detail": detail}).encode(), {}, NOW).message
    assert said.endswith("It said: body.messages.0: Input should be a string; another")
    many = [{"loc": list(range(1000)), "msg": "x" * 1000}] * 1000
    assert len(COMPLAIN.of_status(422, json.dumps({"detail": many}).encode(), {}, NOW).message) < 1000


@pytest.mark.parametrize(("status", "body", "kind", "retryable", "word"), BODIES)
def test_error_bodies_of_providers_have_the_right_kind(
    status: int, body: str, kind: str, retryable: bool, word: str
) -> None:
    """Bodies of OpenAI, Anthropic, Gemini, OpenRouter, Azure, others and local servers."""
    failure = COMPLAIN.of_status(status, body.encode(), {}, NOW)
    assert (failure.kind, failure.retryable) == (kind, retryable)
    assert word in failure.brief
    assert f"({status})" in failure.brief


@pytest.mark.parametrize(
    ("status", "said", "documents"),
    [
        (400, "Unsupported chat content part type: 'file'. Supported types: ['text'].", True),
        (501, "Unknown part type: file", True),
        (400, "unsupported content[].type", True),
        (400, "Invalid value: file. Supported values are: 'text','image_url'.", True),
        (400, "Invalid Value: 'file'. This model does not support file content types.", True),
        (422, "Input tag 'file' found using 'type' does not match any of the expected tags", True),
        (400, "unknown variant `file`, expected `text` or `image_url`", True),
        (400, "A maximum of 100 PDF pages may be provided.", True),
        (400, "The PDF specified is password protected.", True),
        (500, "The PDF could not be read.", False),
        (400, "Invalid value: 'filed'.", False),
        (400, "Invalid image.", False),
    ],
)
def test_a_refused_document_is_recognised(status: int, said: str, documents: bool) -> None:
    """D5: by servers that accept no documents, or not this one; the request can then be retried without it."""
    assert COMPLAIN.of_status(status, _openai(said).encode(), {}, NOW).documents is documents


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ('{"error":{"message":"Rate limit reached. Please try again in 1.5s.","code":"rate_limit_exceeded"}}', 1.5),
        ('{"error":{"message":"Rate limit reached. Please try again in 20ms. Visit","code":"x"}}', 0.02),
        ('{"error":{"code":"429","message":"Please retry after 22 seconds."}}', 22.0),
        ('{"error":{"message":"x","details":[{"retryDelay":"34.5s"}]}}', 34.5),
        ('{"error":{"message":"x","details":[{"retryDelay":34}, null, "s"]}}', None),
        ('{"error":{"message":"try again in a moment"}}', None),
    ],
)
def test_retry_after_is_read_from_the_body(body: str, seconds: float | None) -> None:
    assert COMPLAIN.of_status(429, body.encode(), {}, NOW).retry_after == seconds
    assert COMPLAIN.of_status(429, body.encode(), {"retry-after": "3"}, NOW).retry_after == 3.0, "a header outranks it"


@pytest.mark.parametrize(("said", "retryable"), [("false", False), ("true", True), ("perhaps", True)])
def test_x_should_retry_takes_precedence(said: str, retryable: bool) -> None:
    assert COMPLAIN.of_status(503, b"", {"x-should-retry": said}, NOW).retryable is retryable


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), _nested, max_leaves=12))
def test_any_json_error_becomes_a_failure(error: Any) -> None:
    body = json.dumps({"error": error, "code": error}).encode()
    assert COMPLAIN.of_status(400, body, {}, NOW).message.startswith("Model 'main': ")
    assert COMPLAIN.of_stream_error(json.dumps(error).encode()).message.startswith("Model 'main': ")


def test_a_web_page_is_not_quoted() -> None:
    assert "html" not in COMPLAIN.of_status(502, b"<html>bad gateway</html>", {}, NOW).message


@pytest.mark.parametrize("padding", [0, QUOTE_CHARACTERS - 10])
def test_a_credential_is_removed_before_a_quote_is_shortened(padding: int) -> None:
    """X15: shortened in its middle, it would escape redaction."""
    said = b'{"error":{"message":"' + b"a" * padding + b" " + SECRET.encode() + b' sk-abcdefghijklmnop"}}'
    message = COMPLAIN.of_status(400, said, {}, NOW).message
    assert "canary" not in message
    assert "sk-abc" not in message


@pytest.mark.parametrize(
    ("complaint", "kind", "retryable"),
    [
        (b'{"message":"x","code":429}', "rate", True),
        (b'{"message":"x","type":"rate_limit_error"}', "rate", True),
        (b'{"message":"x","type":"overloaded_error"}', "overloaded", True),
        (b'{"message":"x","type":"tokens","code":"rate_limit_exceeded"}', "rate", True),
        (b'{"type":"error","code":"rate_limit_exceeded","message":"x","param":null}', "rate", True),
        (b'{"type":"authentication_error","message":"x"}', "authorisation", False),
        (b'{"type":"permission_error","message":"x"}', "authorisation", False),
        (b'{"type":"billing_error","message":"x"}', "quota", False),
        (b'{"type":"request_too_large","message":"x"}', "invalid", False),
        (b'{"type":"timeout_error","message":"x"}', "timeout", True),
        (b'{"type":"api_error","message":"Internal server error"}', "overloaded", True),
        (b'{"code":"server_error","message":"x"}', "overloaded", True),
        (b'{"code":"context_length_exceeded","message":"x"}', "context", False),
        (b'{"code":"content_filter","message":"x"}', "content", False),
        (b'{"code":502,"message":"Provider disconnected"}', "overloaded", True),
        (b'{"message":"x","code":"insufficient_quota","type":"invalid_request_error"}', "quota", False),
        (b'{"message":"maximum context length is 5","type":"invalid_request_error"}', "context", False),
        (b'"just words"', "overloaded", True),
        (b"[]", "overloaded", True),
    ],
)
def test_an_error_inside_a_stream_has_its_kind(complaint: bytes, kind: str, retryable: bool) -> None:
    failure = COMPLAIN.of_stream_error(complaint)
    assert (failure.kind, failure.retryable) == (kind, retryable)


@pytest.mark.parametrize(
    ("trouble", "begun", "kind", "retryable", "word"),
    [
        ("crowded", False, "overloaded", True, "limits.connections_per_host"),
        ("late", False, "timeout", True, "connect timeout"),
        ("silent", False, "timeout", True, "first_byte_timeout"),
        ("silent", True, "timeout", True, "idle_timeout"),
        ("broken", False, "network", True, "broke; try again"),
        ("broken", True, "network", True, "in the middle of the answer"),
        ("unconnected", False, "network", True, "that the server is running"),
        ("untrusted", False, "network", False, "certificate"),
        ("foreign", False, "protocol", False, "valid HTTP response"),
    ],
)
def test_connection_failures_have_a_kind_and_advice(
    trouble: Trouble, begun: bool, kind: str, retryable: bool, word: str
) -> None:
    failure = COMPLAIN.of_connection(ConnectionFailed(trouble, "some reason"), begun=begun)
    assert (failure.kind, failure.retryable) == (kind, retryable)
    assert word in failure.message
