"""What a tool may do without a person: a pure function over rules, a mode, and one exact action.

Guarantee: the same rules, mode and action give the same verdict everywhere; nothing is read, kept or asked here. Rules
come before the mode, the first that fits decides, and a denial is final. A policy is a convenience on top of the
sandbox and never the wall: a rule about a command's text can be got around by writing it differently, so what must not
happen is a matter of the sandbox, and `deny` here says only what is not even tried.

A rule is a line: what to do, what it is about, and conditions that must all hold. A pattern goes on to the next
condition, so that it may hold blanks; in quotes (and `\\` before a quote or a `\\`) it may hold anything.

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

_TOOL = re.compile(r"[A-Za-z0-9_\-*?\[\]!]+")  # what a tool may be called, and the signs of a pattern
_CHANNEL = re.compile(r"channel:(\S*)(?:\s+|$)")
_ARGUMENT = re.compile(r"([^\W\d]\w*)=")
_NEXT = re.compile(r"\s+(?=channel:|[^\W\d]\w*=)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\s+|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r'[^\s"]\S*')
_WILDCARD = re.compile(r"\[!?\]?[^\]]*\]|[*?]")
_SHELL = re.compile(r"""[;&|<>$`(){}\\'"#\n\r\0]""")  # what ends, joins or quotes commands


class Action(Frozen, frozen=True):
    """One call of a tool as it is about to be made. `contained` says that whatever it changes or executes stays in the
    session's workspace, and what it executes in a sandbox."""

    tool: str
    effect: str
    arguments: Mapping[str, Any]
    channel: str
    contained: bool


class PolicyVerdict(Frozen, frozen=True):
    """`because` names the rule or the mode that decided, for whoever has to understand it."""

    decision: Decision
    because: str


class PolicyRule(Frozen, frozen=True):
    """One parsed line; as a string, the same line again. Empty `tool`, `effect` or `channel` means any."""

    decision: Decision
    tool: str = ""
    effect: str = ""
    channel: str = ""
    arguments: tuple[tuple[str, str], ...] = ()

    def fits(self, action: Action) -> bool:
        return (
            (not self.tool or fnmatch.fnmatchcase(action.tool, self.tool))
            and (not self.effect or action.effect == self.effect)
            and (not self.channel or action.channel == self.channel)
            and all(self._fits(action, name, pattern) for name, pattern in self.arguments)
        )

    def _fits(self, action: Action, name: str, pattern: str) -> bool:
        """A value that is no text is compared as it stands in JSON; one that is not given fits nothing. What `allow`
        lets a wildcard of a command stand for has no character that a shell could end or join commands by."""
        value = action.arguments.get(name)
        if value is None:
            return False
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if not fnmatch.fnmatchcase(text, pattern):
            return False
        is_command = action.effect == "execute" or name == "command"
        return self.decision != "allow" or not is_command or not _adds_to_shell(text, pattern)

    def __str__(self) -> str:
        words: list[str] = [self.decision, f"effect:{self.effect}" if self.effect else self.tool or "*"]
        words += [f"{name}={_written(pattern)}" for name, pattern in self.arguments]
        if self.channel:
            words.append(f"channel:{self.channel}")
        return " ".join(words)


def parse(text: str) -> PolicyRule:
    """A rule from its line; Misconfigured says what is wrong with it."""
    decision, subject, rest = (*text.split(None, 2), "", "", "")[:3]
    if decision not in _DECISIONS:
        raise _wrong(text, f"must begin with one of {', '.join(_DECISIONS)}")
    kind, _, effect = subject.partition(":")
    is_effect = kind == "effect"
    if is_effect and effect not in _EFFECTS:
        raise _wrong(text, f"names no effect; there are {', '.join(_EFFECTS)}")
    if not is_effect and not _TOOL.fullmatch(subject):
        raise _wrong(
            text, f"must say after {decision!r} what it is about: a tool, a pattern of tools, effect:NAME or *"
        )
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
        if rule.fits(action):
            return PolicyVerdict(decision=rule.decision, because=f"rule: {rule}")
    return PolicyVerdict(decision=_by_mode(mode, action), because=f"approvals = {mode}")


def strictest(verdicts: Iterable[PolicyVerdict]) -> PolicyVerdict:
    """The verdict that holds where several policies do: a denial before a question, a question before leave."""
    return max(verdicts, key=lambda verdict: _DECISIONS.index(verdict.decision))


def _by_mode(mode: Mode, action: Action) -> Decision:
    if mode == "autonomous" or action.effect == "read":
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
            raise _wrong(text, f"holds {rest.split()[0]!r}, which is neither channel:NAME nor argument=pattern")
    return channel, tuple(arguments)


def _pattern(text: str, name: str, rest: str) -> tuple[str, str]:
    """The pattern that stands at the beginning, and what follows it."""
    if rest.startswith('"'):
        if (quoted := _QUOTED.match(rest)) is None:
            raise _wrong(text, f"has no closing quote for the pattern of {name}, or something stands right behind it")
        return _ESCAPED.sub(r"\1", quoted[1]), rest[quoted.end() :]
    end = _NEXT.search(rest)
    pattern, rest = (rest, "") if end is None else (rest[: end.start()], rest[end.end() :])
    if not pattern or pattern[0].isspace():
        raise _wrong(text, f'has no pattern for {name}; write {name}=* for any, {name}="" for an empty one')
    return pattern, rest


def _written(pattern: str) -> str:
    if _PLAIN.fullmatch(pattern):
        return pattern
    return '"{}"'.format(pattern.replace("\\", "\\\\").replace('"', '\\"'))


def _wrong(text: str, what: str) -> Misconfigured:
    return Misconfigured(f"the rule {text!r} {what}")


def _adds_to_shell(text: str, pattern: str) -> bool:
    """Whether a wildcard stands for a character of the shell: the text has more of them than the pattern spells out."""
    return len(_SHELL.findall(text)) != len(_SHELL.findall(_WILDCARD.sub("", pattern)))
