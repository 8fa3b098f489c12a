"""Reasoning efforts, in the model's own words."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.tables.agents import AgentSettings
from tidegate.config.tables.declarations import settings_of
from tidegate.config.tables.models import ModelSettings
from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.call_parameters import nearest_effort, requested_effort
from tidegate.models.formats.openai.responses import ResponsesWire
from tidegate.models.interface import EncodedPrefix
from tidegate.values import Call

OURS = ("off", "minimal", "low", "medium", "high", "max")
THEIRS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@pytest.mark.parametrize(
    ("asked", "efforts", "word"),
    [
        ("high", ("low", "medium", "high"), "high"),
        ("max", ("low", "medium", "high"), "high"),
        ("max", ("low", "medium", "high", "xhigh"), "xhigh"),
        ("max", ("low", "xhigh", "max"), "max"),
        ("off", ("none", "low"), "none"),
        ("off", ("minimal", "low"), "minimal"),
        ("off", ("high", "max"), "high"),
        ("medium", ("low", "high"), "low"),
        ("low", ("none", "high"), "none"),
        ("minimal", ("low", "medium"), "low"),
        ("high", (), None),
        ("ultra", ("low", "high"), "ultra"),
    ],
)
def test_the_nearest_effort_that_does_not_exceed_the_requested_one_is_used(
    asked: str, efforts: Sequence[str], word: str
) -> None:
    """One setting for all models; an effort that is not on the scale is passed through."""
    assert nearest_effort(asked, efforts) == word


@given(st.sampled_from(OURS), st.lists(st.sampled_from(THEIRS), min_size=1, unique=True))
def test_only_efforts_that_the_model_knows_are_sent(asked: str, efforts: list[str]) -> None:
    """In any order of its list."""
    assert nearest_effort(asked, efforts) in efforts
    assert nearest_effort(asked, efforts) == nearest_effort(asked, sorted(efforts))


@given(st.lists(st.sampled_from(THEIRS), min_size=1, unique=True))
def test_a_higher_request_never_gives_a_lower_effort(efforts: list[str]) -> None:
    ranks = [THEIRS.index(nearest_effort(asked, efforts) or "") for asked in OURS]
    assert ranks == sorted(ranks)


def test_every_configurable_effort_is_on_the_scale() -> None:
    """Otherwise it would be passed through."""
    assert getattr(settings_of(AgentSettings)["reasoning"].rule, "words", ()) == OURS
    assert getattr(settings_of(ModelSettings)["efforts"].rule, "words", ()) == THEIRS
    for asked in OURS:
        assert nearest_effort(asked, ()) is None
    for effort in THEIRS:
        assert nearest_effort("max", (effort,)) == effort


def test_an_unknown_model_gets_an_effort_only_on_request() -> None:
    """A3: it may not be able to think at all; an explicit request that it refuses is reported."""
    guessed = Facts(thinking="effort", efforts=("low", "medium", "high"), thinking_unknown=True)
    known = Facts(thinking="effort", efforts=("low", "medium", "high"))
    assert (requested_effort(guessed, None), requested_effort(guessed, "off"), requested_effort(guessed, "max")) == (
        None,
        None,
        "high",
    )
    assert (requested_effort(known, None), requested_effort(known, "off")) == (None, "low")
    plain, asked = (
        b"".join(ResponsesWire("m", guessed).body(EncodedPrefix(), [], Call(reasoning=reasoning, temperature=1)))
        for reasoning in (None, "high")
    )
    assert b"include" not in plain and b"temperature" in plain
    assert b"reasoning.encrypted_content" in asked and b"temperature" not in asked
