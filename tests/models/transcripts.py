"""Transcripts for the tests of wire formats: any turns, with any items that a model wants back."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tidegate.values import Media, Message, OpaqueItem, Prefix, ToolCall, ToolDefinition

texts = st.text(max_size=40)
calls = st.builds(ToolCall, id=texts, name=texts, arguments=texts)
tools = st.builds(
    ToolDefinition, name=texts, description=texts, parameters=st.just(msgspec.Raw(b'{"type": "object", "x":[1 ,2]}'))
)
prefixes = st.builds(Prefix, prompt=texts, tools=st.lists(tools, max_size=3).map(tuple))
shown = st.builds(
    Media,
    media_type=st.sampled_from(
        ["image/png", "image/jpeg", "image/tiff", "audio/wav", "audio/mpeg", "audio/ogg", "application/pdf"]
    ),
    data=st.binary(min_size=1, max_size=30),
    width=st.integers(1, 2000),
    height=st.integers(1, 2000),
    note=texts,
    name=texts,
)
several = st.lists(shown, max_size=2).map(tuple)
users = st.one_of(
    st.builds(Message, role=st.just("user"), text=texts, aside=texts, media=several),
    st.builds(Message, role=st.just("system"), text=texts),
)
results = st.builds(Message, role=st.just("tool"), text=texts, call_id=texts, name=texts, media=several)


def carrying(carrier: str, carried: SearchStrategy[OpaqueItem]) -> SearchStrategy[Message]:
    """Answers of the model `m` and of another, with and without stored items."""
    return st.builds(
        Message,
        role=st.just("assistant"),
        text=texts,
        calls=st.lists(calls, max_size=3).map(tuple),
        model=st.sampled_from(["m", "other"]),
        carrier=st.sampled_from([carrier, "else"]),
        carried=st.lists(carried, max_size=3).map(tuple),
    )


def groups(answers: SearchStrategy[Message]) -> SearchStrategy[list[list[Message]]]:
    """Messages that are encoded together: a message, or all results of a step."""
    alone: SearchStrategy[Any] = st.one_of(users, answers).map(lambda message: [message])
    return st.lists(st.one_of(alone, st.lists(results, min_size=1, max_size=3)), min_size=1, max_size=4)
