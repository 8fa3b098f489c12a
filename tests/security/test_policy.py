"""What a tool may do without a person: rules, modes, and one exact action."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Misconfigured
from tidegate.security.policy import Action, Mode, Rule, decide, parse

TOOLS = ("terminal", "write_file", "read_file", "web_fetch", "ask_user")
EFFECTS = ("read", "write", "execute", "network")
MODES: tuple[Mode, ...] = ("strict", "balanced", "autonomous")
CHANNELS = ("page", "terminal", "http")

texts = st.text(max_size=12) | st.sampled_from(("git push*", "*", "a=b c", 'say "hi"', "\\", "x channel:page", ""))
values = texts | st.integers() | st.booleans() | st.none() | st.lists(texts, max_size=2)
names = st.sampled_from(("command", "path", "timeout", "channel"))
actions = st.builds(
    Action,
    tool=st.sampled_from(TOOLS),
    effect=st.sampled_from(EFFECTS),
    arguments=st.dictionaries(names, values, max_size=3),
    channel=st.sampled_from(CHANNELS),
    contained=st.booleans(),
)
subjects = st.one_of(
    st.just({}),
    st.sampled_from(EFFECTS).map(lambda effect: {"effect": effect}),
    st.sampled_from((*TOOLS, "web_*", "*_file", "t[ae]rminal", "?*")).map(lambda tool: {"tool": tool}),
)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    return Rule(
        decision=draw(st.sampled_from(("allow", "ask", "deny"))),
        channel=draw(st.sampled_from(("", *CHANNELS))),
        arguments=tuple(draw(st.lists(st.tuples(names, texts), max_size=3))),
        **draw(subjects),
    )


def act(tool: str = "terminal", effect: str = "execute", *, contained: bool = False, **arguments: object) -> Action:
    return Action(tool=tool, effect=effect, arguments=arguments, channel="page", contained=contained)


@given(rules())
def test_a_rule_that_is_written_down_is_read_as_the_same_rule(rule: Rule) -> None:
    """X14: whatever stands in its patterns; so what a person is told of a rule is the rule."""
    assert parse(str(rule)) == rule
    assert parse(f"  {rule}\t") == rule


@given(st.lists(rules(), max_size=5), st.sampled_from(MODES), actions)
def test_the_first_rule_that_fits_decides_and_a_denial_is_final(given: list[Rule], mode: Mode, action: Action) -> None:
    """X14: neither the mode nor a later rule changes it, and asking again gives the same."""
    verdict = decide(given, mode, action)
    assert decide(tuple(given), mode, action) == verdict
    first = next((rule for rule in given if rule.fits(action)), None)
    if first is None:
        assert verdict.because == f"approvals = {mode}" and verdict == decide((), mode, action)
        return
    assert verdict.decision == first.decision and verdict.because == f"rule: {first}"
    for other in MODES:
        assert decide(given, other, action) == verdict
    if first.decision == "deny":
        allowing = Rule(decision="allow")
        assert decide([*given, allowing], "autonomous", action).decision == "deny"


@given(rules(), actions)
def test_a_rule_fits_when_all_that_it_says_holds(rule: Rule, action: Action) -> None:
    """One thing that does not hold is enough; what is not given fits no pattern."""
    said = [
        not rule.tool or fnmatch.fnmatchcase(action.tool, rule.tool),
        not rule.effect or rule.effect == action.effect,
        not rule.channel or rule.channel == action.channel,
    ]
    for name, pattern in rule.arguments:
        value = action.arguments.get(name)
        said.append(value is not None and (not isinstance(value, str) or fnmatch.fnmatchcase(value, pattern)))
    assert rule.fits(action) <= all(said)
    if all(isinstance(action.arguments.get(name), str) for name, _ in rule.arguments):
        assert rule.fits(action) == all(said)


@pytest.mark.parametrize(("mode", "asked"), [("strict", (True, False)), ("balanced", (False,)), ("autonomous", ())])
@pytest.mark.parametrize("contained", [True, False])
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_mode_says_what_needs_a_person(mode: Mode, asked: tuple[bool, ...], contained: bool, effect: str) -> None:
    """X11: without a rule: what reads needs nobody; strict asks for all else, balanced for what is not contained."""
    wanted = "ask" if effect != "read" and contained in asked else "allow"
    assert decide((), mode, act("any", effect, contained=contained)).decision == wanted


@pytest.mark.parametrize(
    ("line", "fitting", "other"),
    [
        ("ask terminal command=git push*", act(command="git push -f"), act(command="git status")),
        ("ask terminal command=git push* channel:page", act(command="git push"), act(command="git")),
        ('deny terminal command="make DEPLOY=1 *"', act(command="make DEPLOY=1 x"), act(command="make")),
        ("deny effect:execute", act(), act("write_file", "write")),
        ("deny *_file path=secrets/*", act("write_file", "write", path="secrets/a/b"), act("write_file", "write")),
        ("ask terminal pty=true", act(pty=True), act(pty=False)),
        ("ask terminal timeout=3??", act(timeout=300), act(timeout=30)),
        ("deny * channel:http", Action(tool="x", effect="read", arguments={}, channel="http", contained=True), act()),
        ('ask terminal command=""', act(command=""), act(command=" ")),
        ("ask terminal command=*\n*", act(command="a\nb"), act(command="ab")),
    ],
)
def test_rules_read_as_they_are_written(line: str, fitting: Action, other: Action) -> None:
    """The examples of the documentation, and their limits."""
    rule = parse(line)
    assert rule.fits(fitting) and not rule.fits(other)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "must begin with one of allow, ask, deny"),
        ("permit terminal", "must begin with one of allow, ask, deny"),
        ("deny", "what it is about"),
        ("deny command=rm*", "what it is about"),
        ("deny effect:exec", "there are read, write, execute, network"),
        ("deny terminal rm", "'rm', which is neither"),
        ("deny terminal command=", "command=\\* for any"),
        ('deny terminal command="rm', "no closing quote"),
        ('deny terminal command="rm"x', "no closing quote"),
        ("deny terminal channel:", "one channel"),
        ("deny terminal channel:page channel:http", "one channel"),
    ],
)
def test_a_rule_that_cannot_be_read_is_told_with_what_is_wrong(line: str, wrong: str) -> None:
    """X11: it is never taken for one that fits nothing."""
    with pytest.raises(Misconfigured, match=wrong) as told:
        parse(line)
    assert repr(line) in told.value.message
