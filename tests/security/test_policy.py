"""What a tool may do without a person: rules, modes, and one exact action."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Misconfigured
from tidegate.security.policy import Action, Mode, PolicyRule, decide, parse, strictest

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
def rules(draw: st.DrawFn) -> PolicyRule:
    return PolicyRule(
        decision=draw(st.sampled_from(("allow", "ask", "deny"))),
        channel=draw(st.sampled_from(("", *CHANNELS))),
        arguments=tuple(draw(st.lists(st.tuples(names, texts), max_size=3))),
        **draw(subjects),
    )


def act(tool: str = "terminal", effect: str = "execute", *, contained: bool = False, **arguments: object) -> Action:
    return Action(tool=tool, effect=effect, arguments=arguments, channel="page", contained=contained)


@given(rules())
def test_a_rule_that_is_written_down_is_read_as_the_same_rule(rule: PolicyRule) -> None:
    """X14: for all patterns; so a rule is always shown as it is."""
    assert parse(str(rule)) == rule
    assert parse(f"  {rule}\t") == rule


@given(st.lists(rules(), max_size=5), st.sampled_from(MODES), actions)
def test_the_first_rule_that_fits_decides_and_a_denial_is_final(
    given: list[PolicyRule], mode: Mode, action: Action
) -> None:
    """X14: neither the mode nor a later rule changes it, and asking again gives the same."""
    verdict = decide(given, mode, action)
    assert decide(tuple(given), mode, action) == verdict
    first = next((rule for rule in given if rule.matches(action)), None)
    if first is None:
        assert verdict.because == f"approvals = {mode}" and verdict == decide((), mode, action)
        return
    assert verdict.decision == first.decision and verdict.because == f"rule: {first}"
    for other in MODES:
        assert decide(given, other, action) == verdict
    if first.decision == "deny":
        allowing = PolicyRule(decision="allow")
        assert decide([*given, allowing], "autonomous", action).decision == "deny"


@given(rules(), actions)
def test_a_rule_fits_when_all_that_it_says_holds(rule: PolicyRule, action: Action) -> None:
    """One failed condition is enough; a missing argument matches no pattern."""
    said = [
        not rule.tool or fnmatch.fnmatchcase(action.tool, rule.tool),
        not rule.effect or rule.effect == action.effect,
        not rule.channel or rule.channel == action.channel,
    ]
    for name, pattern in rule.arguments:
        value = action.arguments.get(name)
        said.append(value is not None and (not isinstance(value, str) or fnmatch.fnmatchcase(value, pattern)))
    assert rule.matches(action) <= all(said)
    if rule.decision != "allow" and all(isinstance(action.arguments.get(name), str) for name, _ in rule.arguments):
        assert rule.matches(action) == all(said)


SHELL = ";&|<>$`(){}\\'\"#\n\r\0"
words = st.text(st.characters(exclude_characters=SHELL + "*?[]"), max_size=12)
pieces = words | st.sampled_from(("a && b", "x | y", "'q'", "$HOME"))


@given(st.lists(pieces, min_size=2, max_size=4), st.data())
def test_a_wildcard_of_an_allowed_command_stands_for_no_character_of_the_shell(
    literals: list[str], data: st.DataObject
) -> None:
    """X12: the literal part of a rule is allowed; `ask` and `deny` still match everything."""
    pattern = "*".join(literals)
    between = data.draw(st.lists(words, min_size=len(literals) - 1, max_size=len(literals) - 1))
    harmless = _joined(literals, between)
    place = data.draw(st.integers(0, len(between) - 1))
    at = data.draw(st.integers(0, len(between[place])))
    character = data.draw(st.sampled_from(SHELL))
    between[place] = between[place][:at] + character + between[place][at:]
    hostile = _joined(literals, between)
    rules = {
        decision: PolicyRule(decision=decision, tool="terminal", arguments=(("command", pattern),))
        for decision in ("allow", "ask", "deny")
    }
    assert rules["allow"].matches(act(command=harmless)) and not rules["allow"].matches(act(command=hostile))
    for decision in ("ask", "deny"):
        assert rules[decision].matches(act(command=harmless)) and rules[decision].matches(act(command=hostile))


def _joined(literals: list[str], between: list[str]) -> str:
    return "".join(f"{literal}{text}" for literal, text in zip(literals, [*between, ""], strict=True))


@given(st.text(st.characters(exclude_characters="*?[")))
def test_a_pattern_without_a_wildcard_allows_just_its_command(command: str) -> None:
    """X12: with whatever characters it has."""
    assert PolicyRule(decision="allow", arguments=(("command", command),)).matches(act(command=command))


@pytest.mark.parametrize(
    "command",
    ["git status; rm -rf ~", "git status && id", "git status | sh", "git status $(id)", "git status `id`",
     "git status\nid", "git status > ~/.bashrc", "git status <(id)", "git status & id",
     'git status "a"', "git status #", "git status${IFS}--x", "git status\rid", "git status \\\nid", "git status || id",
     "git status |& sh", "git status 2>&1", "git status {a,b}", "git status <<< a", "git status\0id"],
)  # fmt: skip
@pytest.mark.parametrize("pattern", ["git status*", "git*", "*", "git status[!a]*", "git status?*"])
def test_an_allowed_prefix_allows_no_second_command(pattern: str, command: str) -> None:
    """X12: the mode decides then, and asks."""
    rule = parse(f"allow terminal command={pattern}")
    assert decide([rule], "balanced", act(command="git status -s")).decision == "allow"
    assert decide([rule], "balanced", act(command=command)).because == "approvals = balanced"
    assert rule.matches(act("write_file", "write", command="a", path="b")) is False
    assert parse("allow write_file path=*").matches(act("write_file", "write", path="notes (1) & more.txt"))


@pytest.mark.parametrize("path", ["notes/../.env", "notes/a/../../b", "notes/.."])
def test_an_allowed_folder_allows_nothing_outside_it(path: str) -> None:
    """X12: unless the pattern itself leads there."""
    rule = parse("allow write_file path=notes/*")
    assert rule.matches(act("write_file", "write", path="notes/a..b/c"))
    assert not rule.matches(act("write_file", "write", path=path))
    assert parse("allow write_file path=../notes/*").matches(act("write_file", "write", path="../notes/a"))
    assert not parse("allow write_file path=../notes/*").matches(act("write_file", "write", path="../notes/../a"))
    assert parse("ask write_file path=notes/*").matches(act("write_file", "write", path=path))


@given(st.lists(st.lists(rules(), max_size=3), min_size=1, max_size=3), st.sampled_from(MODES), actions)
def test_of_several_policies_the_strictest_decides(given: list[list[PolicyRule]], mode: Mode, action: Action) -> None:
    """X11: no policy that is added makes the verdict milder."""
    order = ["allow", "ask", "deny"]
    verdicts = [decide(lines, mode, action) for lines in given]
    found = order.index(strictest(verdicts).decision)
    assert found == max(order.index(verdict.decision) for verdict in verdicts)


@pytest.mark.parametrize(("mode", "asked"), [("strict", (True, False)), ("balanced", (False,)), ("autonomous", ())])
@pytest.mark.parametrize("contained", [True, False])
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_mode_says_what_needs_a_person(mode: Mode, asked: tuple[bool, ...], contained: bool, effect: str) -> None:
    """X11: without a rule, reading needs no approval; strict asks for all else, balanced if it is not contained."""
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
    assert rule.matches(fitting) and not rule.matches(other)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("", "must begin with one of allow, ask, deny"),
        ("permit terminal", "must begin with one of allow, ask, deny"),
        ("deny", "needs a subject"),
        ("deny command=rm*", "needs a subject"),
        ("deny effect:exec", "the effects are read, write, execute, network"),
        ("deny terminal rm", "'rm', which is neither"),
        ("deny terminal command=", "command=\\* for any"),
        ('deny terminal command="rm', "no closing quote"),
        ('deny terminal command="rm"x', "no closing quote"),
        ("deny terminal channel:", "one channel"),
        ("deny terminal channel:page channel:http", "one channel"),
    ],
)
def test_an_invalid_rule_is_reported_with_the_reason(line: str, wrong: str) -> None:
    """X11: it is never taken for one that fits nothing."""
    with pytest.raises(Misconfigured, match=wrong) as told:
        parse(line)
    assert repr(line) in told.value.message
