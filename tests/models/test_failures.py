"""Foreign failures in our own words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.models.connection import LinkFailed, Trouble
from tidegate.models.failures import QUOTE_CHARACTERS, Complainer, retry_after
from tidegate.security import Redactor, Secret

NOW = 1_700_000_000.0
SECRET = "canary-4f9d1c77-key"
COMPLAIN = Complainer("main", "http://127.0.0.1:1/v1/chat/completions", Redactor([Secret(SECRET)]).text)


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
    ],
)
def test_the_wish_to_wait_is_understood_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


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
        b"the words",
    ],
)
def test_what_the_endpoint_says_is_quoted_whatever_its_shape(body: bytes) -> None:
    assert COMPLAIN.of_status(400, body, {}, NOW).message.endswith("It said: the words")


def test_a_web_page_is_not_quoted() -> None:
    assert "html" not in COMPLAIN.of_status(502, b"<html>bad gateway</html>", {}, NOW).message


@pytest.mark.parametrize("padding", [0, QUOTE_CHARACTERS - 10])
def test_a_credential_is_taken_out_before_a_quote_is_cut(padding: int) -> None:
    """X15: a cut in its middle would hide it from the redaction."""
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
        ("unconnected", False, "network", True, "that the server runs"),
        ("untrusted", False, "network", False, "certificate"),
        ("foreign", False, "protocol", False, "does not speak HTTP"),
    ],
)
def test_troubles_of_a_connection_have_their_kind_and_their_advice(
    trouble: Trouble, begun: bool, kind: str, retryable: bool, word: str
) -> None:
    failure = COMPLAIN.of_link(LinkFailed(trouble, "some reason"), begun=begun)
    assert (failure.kind, failure.retryable) == (kind, retryable)
    assert word in failure.message
