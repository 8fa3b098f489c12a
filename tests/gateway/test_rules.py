"""Rules of approval are read before a gateway starts."""

from pathlib import Path

import pytest

from tests.gateway.process import tidegate
from tidegate.gateway import PreflightFailed, examine


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def write(home: Path, *rules: str, agent: str = "main") -> None:
    lines = ", ".join(f"'{rule}'" for rule in rules)
    (home / "tidegate.toml").write_text(f'[agents.{agent}]\ntools = ["clock", "files"]\nrules = [{lines}]\n')


def test_a_rule_that_cannot_be_read_keeps_the_gateway_from_starting(home: Path) -> None:
    """X11, F3: file, agent, rule and what is wrong, all of them together, for the start and `config check` alike."""
    write(home, "deny effect:exec", "allow *", "permit write_file", agent="coder")
    with pytest.raises(PreflightFailed) as told:
        examine(home)
    assert told.value.errors == (
        f"{home}/tidegate.toml: [agents.coder] rules: the rule 'deny effect:exec' names an unknown effect; the "
        "effects are read, write, execute, network",
        f"{home}/tidegate.toml: [agents.coder] rules: the rule 'permit write_file' must begin with one of allow, ask, "
        "deny",
    )
    start, check = tidegate("up", "--port", "0", home=home), tidegate("config", "check", home=home)
    assert (start.returncode, check.returncode) == (1, 1)
    assert start.stderr == check.stderr
    assert "[agents.coder] rules: the rule 'permit write_file'" in check.stderr


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("deny write_flie", "the agent's tools are clock, "),
        ("deny write_file pth=secrets/*", "has the argument 'pth'; the arguments are "),
        ("deny * command=rm*", "has the argument 'command'"),
        ("ask write_file path=a FOO=1", "has the argument 'FOO'"),
        ("deny write_file channel:telegram", "no channel 'telegram'; the channels are http, "),
    ],
)
def test_a_rule_that_can_never_match_is_a_warning(home: Path, rule: str, why: str) -> None:
    """X11, X12: its author believes that it protects something."""
    write(home, rule)
    (warning,) = examine(home).warnings
    assert warning.startswith(f"{home}/tidegate.toml: [agents.main] rules: the rule {rule!r} never matches: ")
    assert why in warning


def test_rules_that_can_match_give_no_warning(home: Path) -> None:
    """X11: also those about an effect that no tool has yet."""
    write(home, "deny effect:execute", "ask *_file path=*.env channel:page", "allow *")
    assert examine(home).warnings == ()
