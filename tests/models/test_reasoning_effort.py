"""How hard a model is asked to think, in its own words."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.settings import AgentSettings, ModelSettings, settings_of
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
def test_the_nearest_word_that_is_not_above_what_was_asked(asked: str, efforts: Sequence[str], word: str) -> None:
    """One setting for all models; a word of the caller's own is handed through."""
    assert nearest_effort(asked, efforts) == word


@given(st.sampled_from(OURS), st.lists(st.sampled_from(THEIRS), min_size=1, unique=True))
def test_only_words_that_the_model_knows_are_sent(asked: str, efforts: list[str]) -> None:
    """In whatever order they are given."""
    assert nearest_effort(asked, efforts) in efforts
    assert nearest_effort(asked, efforts) == nearest_effort(asked, sorted(efforts))


@given(st.lists(st.sampled_from(THEIRS), min_size=1, unique=True))
def test_to_ask_for_more_never_gives_less(efforts: list[str]) -> None:
    ranks = [THEIRS.index(nearest_effort(asked, efforts) or "") for asked in OURS]
    assert ranks == sorted(ranks)


def test_every_word_of_the_configuration_is_on_the_scale() -> None:
    """Else it would be handed through as a word of the caller's own."""
    assert getattr(settings_of(AgentSettings)["reasoning"].rule, "words", ()) == OURS
    assert getattr(settings_of(ModelSettings)["efforts"].rule, "words", ()) == THEIRS
    for asked in OURS:
        assert nearest_effort(asked, ()) is None
    for effort in THEIRS:
        assert nearest_effort("max", (effort,)) == effort


def test_a_model_that_nobody_knows_is_told_nothing_of_thinking_unless_somebody_asks() -> None:
    """A3: it may not be able to think at all; whoever asks it to will be told if it cannot."""
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
