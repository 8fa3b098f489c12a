"""The approval policy: decides, based on rules and a mode, whether an exact tool action needs approval.

The decision is a pure function: the same rules, mode and action always result in the same verdict. Rules take
precedence over the mode, the first matching rule decides, and a denial is final. A policy is a convenience on top of
the sandbox, not a security boundary: a rule about a command's text can be bypassed by writing the command differently.
The sandbox prevents what must not happen; `deny` only keeps an action from being attempted.

A rule is one line: a decision, its subject, and conditions that must all hold. A pattern extends to the next condition,
so it may contain spaces; in quotes (with `\\` before a quote or a `\\`), it may contain anything.

    allow  effect:read
    ask    terminal  command=git push*
    ask    terminal  command="make DEPLOY=1 *"  channel:page
    deny   web_*     channel:telegram
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from tidegate.errors import Misconfigured
from tidegate.values import Frozen

Decision = Literal["allow", "ask", "deny"]
Mode = Literal["strict", "balanced", "autonomous"]
_DECISIONS: tuple[str, ...] = get_args(Decision)
_EFFECTS = ("read", "write", "execute", "network")

_TOOL = re.compile(r"[A-Za-z0-9_\-*?\[\]!]+")  # characters in tool names and patterns
_CHANNEL = re.compile(r"channel:(\S*)(?:\s+|$)")
_ARGUMENT = re.compile(r"([^\W\d]\w*)=")
_NEXT = re.compile(r"\s+(?=channel:|[^\W\d]\w*=)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\s+|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r'[^\s"]\S*')
_WILDCARD = re.compile(r"\[!?\]?[^\]]*\]|[*?]")
_SHELL = re.compile(r"""[;&|<>$`(){}\\'"#\n\r\0]""")  # characters that end, join or quote commands


class Action(Frozen, frozen=True):
    """A tool call before it is made. `contained` is true if its changes stay in the session's workspace and everything
    that it executes runs in a sandbox. `asks` is true if the tool declares that its calls need an approval."""

    tool: str
    effect: str
    arguments: Mapping[str, Any]
    channel: str
    contained: bool
    asks: bool = False


class PolicyVerdict(Frozen, frozen=True):
    """A decision. `because` names the rule or mode that led to it."""

    decision: Decision
    because: str


class PolicyRule(Frozen, frozen=True):
    """One parsed rule; `str` returns it as a line. An empty `tool`, `effect` or `channel` matches any."""

    decision: Decision
    tool: str = ""
    effect: str = ""
    channel: str = ""
    arguments: tuple[tuple[str, str], ...] = ()

    def matches(self, action: Action) -> bool:
        return (
            (not self.tool or fnmatch.fnmatchcase(action.tool, self.tool))
            and (not self.effect or action.effect == self.effect)
            and (not self.channel or action.channel == self.channel)
            and all(self._matches(action, name, pattern) for name, pattern in self.arguments)
        )

    def _matches(self, action: Action, name: str, pattern: str) -> bool:
        """Compares one value with a pattern. A value that is not text is compared in its JSON form; a missing value
        matches nothing. In an `allow` rule, a wildcard in a command never matches a character that ends or joins
        commands in a shell, and a wildcard in a path never matches `..`."""
        value = action.arguments.get(name)
        if value is None:
            return False
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if not fnmatch.fnmatchcase(text, pattern):
            return False
        if self.decision != "allow":
            return True
        is_command = action.effect == "execute" or name == "command"
        return not (is_command and _adds_to_shell(text, pattern)) and not (name == "path" and _climbs(text, pattern))

    def __str__(self) -> str:
        words: list[str] = [self.decision, f"effect:{self.effect}" if self.effect else self.tool or "*"]
        words += [f"{name}={_written(pattern)}" for name, pattern in self.arguments]
        if self.channel:
            words.append(f"channel:{self.channel}")
        return " ".join(words)


def parse(text: str) -> PolicyRule:
    """Parses a rule. If it is invalid, raises Misconfigured with the reason."""
    decision, subject, rest = (*text.split(None, 2), "", "", "")[:3]
    if decision not in _DECISIONS:
        raise _wrong(text, f"must begin with one of {', '.join(_DECISIONS)}")
    kind, _, effect = subject.partition(":")
    is_effect = kind == "effect"
    if is_effect and effect not in _EFFECTS:
        raise _wrong(text, f"names an unknown effect; the effects are {', '.join(_EFFECTS)}")
    if not is_effect and not _TOOL.fullmatch(subject):
        raise _wrong(text, f"needs a subject after {decision!r}: a tool, a pattern of tools, effect:NAME or *")
    channel, arguments = _conditions(text, rest.strip())
    return PolicyRule(
        decision=decision,  # type: ignore[arg-type]
        tool="" if is_effect or subject == "*" else subject,
        effect=effect if is_effect else "",
        channel=channel,
        arguments=arguments,
    )


def decide(rules: Sequence[PolicyRule], mode: Mode, action: Action) -> PolicyVerdict:
    for rule in rules:
        if rule.matches(action):
            return PolicyVerdict(decision=rule.decision, because=f"rule: {rule}")
    return PolicyVerdict(decision=_by_mode(mode, action), because=f"approvals = {mode}")


def strictest(verdicts: Iterable[PolicyVerdict]) -> PolicyVerdict:
    """Combines the verdicts of several policies: deny takes precedence over ask, and ask over allow."""
    return max(verdicts, key=lambda verdict: _DECISIONS.index(verdict.decision))


def _by_mode(mode: Mode, action: Action) -> Decision:
    if mode == "autonomous":
        return "allow"
    if action.asks:
        return "ask"
    if action.effect == "read":
        return "allow"
    if mode == "strict":
        return "ask"
    return "allow" if action.contained else "ask"


def _conditions(text: str, rest: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    channel = ""
    arguments: list[tuple[str, str]] = []
    while rest:
        if found := _CHANNEL.match(rest):
            if channel or not found[1]:
                raise _wrong(text, "must name one channel: channel:NAME")
            channel, rest = found[1], rest[found.end() :]
        elif found := _ARGUMENT.match(rest):
            pattern, rest = _pattern(text, found[1], rest[found.end() :])
            arguments.append((found[1], pattern))
        else:
            raise _wrong(text, f"contains {rest.split()[0]!r}, which is neither channel:NAME nor argument=pattern")
    return channel, tuple(arguments)


def _pattern(text: str, name: str, rest: str) -> tuple[str, str]:
    """Returns the pattern at the beginning of the text, and the rest of the text."""
    if rest.startswith('"'):
        if (quoted := _QUOTED.match(rest)) is None:
            raise _wrong(text, f"has no closing quote for the pattern of {name}, or no space after it")
        return _ESCAPED.sub(r"\1", quoted[1]), rest[quoted.end() :]
    end = _NEXT.search(rest)
    pattern, rest = (rest, "") if end is None else (rest[: end.start()], rest[end.end() :])
    if not pattern or pattern[0].isspace():
        raise _wrong(text, f'has no pattern for {name}; write {name}=* for any value, {name}="" for an empty one')
    return pattern, rest


def _written(pattern: str) -> str:
    if _PLAIN.fullmatch(pattern):
        return pattern
    return '"{}"'.format(pattern.replace("\\", "\\\\").replace('"', '\\"'))


def _wrong(text: str, what: str) -> Misconfigured:
    return Misconfigured(f"the rule {text!r} {what}")


def _adds_to_shell(text: str, pattern: str) -> bool:
    """True if a wildcard matches a shell character, that is, if the text contains more of these characters than the
    pattern does literally."""
    return len(_SHELL.findall(text)) != len(_SHELL.findall(_WILDCARD.sub("", pattern)))


def _climbs(text: str, pattern: str) -> bool:
    """True if a wildcard matches a part of a path that leads to the parent folder."""
    return text.split("/").count("..") > pattern.split("/").count("..")
