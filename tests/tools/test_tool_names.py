"""Names of tools from elsewhere: accepted by providers, stable, and never equal by accident."""

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.tools import fit_name

parts = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab_-", max_size=6),
    st.text(alphabet="abcdefgh234567_", min_size=12, max_size=70),
)


@given(parts, parts)
@settings(max_examples=300, deadline=None)
def test_every_name_fits_what_providers_accept(server: str, name: str) -> None:
    """C5: whatever a server calls its tools."""
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", fit_name(server, name))
    assert fit_name(server, name) == fit_name(server, name)


@given(st.tuples(parts, parts), st.tuples(parts, parts))
@settings(max_examples=300, deadline=None)
def test_different_tools_have_different_names(left: tuple[str, str], right: tuple[str, str]) -> None:
    """C5: unique however they were shortened."""
    assert (fit_name(*left) == fit_name(*right)) == (left == right)


@given(parts, parts)
@settings(max_examples=100, deadline=None)
def test_a_name_that_was_made_here_cannot_be_claimed_as_ones_own(server: str, name: str) -> None:
    """C5: a server that names its tool like another's shortened one gets another name."""
    made = fit_name(server, name)
    claimed_server, _, claimed_name = made.partition("__")
    if (claimed_server, claimed_name) != (server, name):
        assert fit_name(claimed_server, claimed_name) != made


def test_names_that_differ_only_in_removed_parts_stay_distinct() -> None:
    """C5: the usual ways in which shortening makes two names one."""
    pairs = [("s", "x" * 100 + end) for end in "ab"] + [
        ("s", "a.b"),
        ("s", "a/b"),
        ("s", "a_b"),
        ("s", "a b"),
        ("s", "ä"),
    ]
    pairs += [
        ("a__b", "c"),
        ("a", "b__c"),
        ("a_", "b"),
        ("a", "_b"),
        ("", "a__b"),
        ("a", ""),
        ("", ""),
        ("S", "x"),
        ("s", "x"),
    ]
    assert len({fit_name(*pair) for pair in pairs}) == len(pairs)


def test_a_fitting_name_stays_readable() -> None:
    """C5: namespaced by its server."""
    assert fit_name("github", "create_issue") == "github__create_issue"
    assert fit_name("github", "create issue").startswith("github__create_issue_")


@pytest.mark.parametrize("seed", ["0", "1"])
def test_names_are_the_same_in_every_process(seed: str) -> None:
    """C5: stable over restarts, whatever the interpreter's hash seed."""
    code = "from tidegate.tools import fit_name; print(fit_name('sérver', 'x' * 90))"
    environment = {"PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    assert (
        done.stdout.strip()
        == fit_name("sérver", "x" * 90)
        == "s_rver__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_aikr6o7ahqblwv7g"
    )
