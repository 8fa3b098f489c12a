"""The field of a caller's request that an endpoint refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.models.http import error_body
from tidegate.models.http.refused_field import caller_field
from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call

CALL = Call(
    temperature=0.5,
    max_tokens=70,
    reasoning="high",
    stop=("END",),
    top_logprobs=3,
    service_tier="warp",
    verbosity="low",
    extras=b'{"top_k":"many","min_p":2,"safety_identifier":"ada"}',
    tool_choice=b'"auto"',
    response_format=b"{}",
)
PREFIX = EncodedPrefix(tools=b'[{"name":"clock"},{"name":"depth"}]', caller_tools=frozenset({"depth"}))


def _openai(message: str, param: str | None) -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


def _anthropic(message: str) -> Any:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _fastapi(*place: str | int) -> Any:
    return {"detail": [{"loc": list(place), "msg": "Input should be a valid integer", "type": "int_parsing"}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (_openai("Invalid value: 'warp'.", "service_tier"), "service_tier"),
        (_openai("Invalid schema for response_format 'x'.", "response_format"), "response_format"),
        (_openai("Invalid schema for response_format 'x'.", "text.format.schema"), "response_format"),
        (_openai("Unsupported value: 'low'.", "text.verbosity"), "verbosity"),
        (_openai("Too many.", "max_output_tokens"), "max_tokens"),
        (_openai("Too many.", "top_logprobs"), "logprobs"),
        (_openai("Invalid schema for function 'depth'.", "tools[1].function.parameters"), "tools"),
        (_openai("Invalid schema for function 'clock'.", "tools[0].function.parameters"), None),
        (_openai("Unsupported value: 'effort'.", "reasoning.effort"), None),
        (_openai("Invalid type for 'messages[3].content'.", "messages[3].content"), None),
        (_openai("Unsupported value: 'seed'.", "seed"), None),
        (_openai("min_p must be in [0, 1], got 2", "min_p"), "min_p"),
        (_anthropic("top_k: Input should be a valid integer"), "top_k"),
        (_anthropic("tools.1.custom.input_schema: JSON schema is invalid."), "tools"),
        (_anthropic("tools.0.custom.input_schema: JSON schema is invalid."), None),
        (_anthropic("output_config.format.schema: 'oneOf' is not supported"), "response_format"),
        (_anthropic("`temperature` is deprecated for this model."), "temperature"),
        (_anthropic("messages.4: tool_use ids were found without tool_result blocks"), None),
        (_fastapi("body", "top_k"), "top_k"),
        (_fastapi("body", "messages", 0, "content"), None),
        ({"error": "Invalid request: Expected `int`, got `str` - at `$.top_k`"}, "top_k"),
        ({"message": "top_k must be 0 (disable), or at least 1, got -5."}, "top_k"),
        ({"message": "[{'type': 'int_parsing', 'loc': ('body', 'top_k'), 'msg': 'not an integer'}]"}, "top_k"),
        (_openai("'messages' must contain the word 'json' in some form.", "messages"), "response_format"),
        (_openai("Too long.", "safety_identifier"), "safety_identifier"),
        ({"error": "stop is not a word of mine"}, None),
        ({"error": "the role 'user' must follow"}, None),
    ],
)
def test_a_refused_field_is_reported_by_the_callers_name(body: Any, field: str | None) -> None:
    """H08: only if the caller set it; of tools, only the caller's own."""
    complaint = error_body.read(json.dumps(body).encode())
    assert caller_field(complaint.param, complaint.message, PREFIX, CALL) == field


@given(param=st.text(max_size=200), said=st.text(max_size=600))
def test_any_error_message_gives_a_field_of_the_caller_or_none(param: str, said: str) -> None:
    """H08"""
    given = {
        "temperature",
        "max_tokens",
        "stop",
        "logprobs",
        "service_tier",
        "verbosity",
        "top_k",
        "min_p",
        "safety_identifier",
    }
    assert caller_field(param, said, PREFIX, CALL) in {*given, "tool_choice", "response_format", "tools", None}
