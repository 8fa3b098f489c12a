"""What one turn's tools may do, and what they ask: the `Permits` of its hands.

Guarantee: whether a call may run is the policy's to say, over this exact call; what needs a person runs only when its
row says approved and has the digest of this very call, the row being read right before. A denial, an expiry and a
question that nobody can answer are results, told to the model in a sentence that says why; where the agent's
configuration says so, an expiry ends the turn. Whoever approves is shown the whole action; one that is too long to be
shown is refused. A task is under the policies of all agents that it was handed on by, and the strictest decides.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tidegate.agent import Turn
from tidegate.config import Config
from tidegate.engine import TakenTurn
from tidegate.errors import Conflict, Refused, ToolFailed, TurnFailed
from tidegate.safe_text import shown
from tidegate.security.policy import Action, Mode, PolicyRule, decide, parse, strictest
from tidegate.store import ApprovalRow, NewApproval, approvals
from tidegate.tools import Tool
from tidegate.turns.approvals import Approvals
from tidegate.values import Frozen, ToolCall
from tidegate.workspaces import Workspace

ANOTHER = "Not run: at this step another action was asked about, and its approval does not hold for this one."


class Policy(Frozen, frozen=True):
    """What one agent's tools may do by themselves, and what becomes of a turn whose question nobody answered."""

    mode: Mode
    rules: tuple[PolicyRule, ...]
    unanswered: Literal["go_on", "end"]


_CAREFUL = Policy(mode="strict", rules=(), unanswered="end")


def policies(config: Config) -> Mapping[str, Policy]:
    """Of each agent; Misconfigured when a rule cannot be read."""
    return {
        name: Policy(
            mode=agent.approvals, rules=tuple(parse(rule) for rule in agent.rules), unanswered=agent.unanswered
        )
        for name, agent in config.agents.items()
    }


class TurnPermissions:
    """Lives as long as its turn."""

    def __init__(
        self, questions: Approvals, policies: Mapping[str, Policy], taken: TakenTurn, workspace: Workspace
    ) -> None:
        self._questions = questions
        self._policies = policies
        self._policy = policies[taken.session.agent]
        self._in_force: tuple[Policy, ...] = ()
        self._taken = taken
        self._workspace = workspace
        # lint: allow it ends with the turn; a question → how often its step has asked it
        self._times: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()  # a step → how many of its questions are open

    async def permit(self, turn: Turn, step: str, tool: Tool, call: ToolCall) -> str | None:
        policies = self._in_force or await self._find_policies()
        has_rules = any(policy.rules for policy in policies)
        if tool.effect == "read" and not has_rules:
            return None
        action = Action(
            tool=tool.name,
            effect=tool.effect,
            arguments=_arguments(call) if has_rules else {},
            channel=await self._questions.channel(self._taken) if has_rules else "",
            contained=tool.contained and (tool.effect != "execute" or await self._workspace.sandboxed()),
        )
        verdict = strictest(decide(policy.rules, policy.mode, action) for policy in policies)
        if verdict.decision == "allow":
            return None
        if verdict.decision == "deny":
            return f"Not run: this is denied here ({verdict.because})."
        return await self._ask_leave(turn, step, call, verdict.because, contained=action.contained)

    async def _find_policies(self) -> tuple[Policy, ...]:
        """The agent's own, and those of the agents that its task comes from. An agent that is not configured any more
        is taken for the most careful one."""
        givers = await self._questions.givers(self._taken)
        self._in_force = (self._policy, *(self._policies.get(agent, _CAREFUL) for agent in givers))
        return self._in_force

    async def _ask_leave(self, turn: Turn, step: str, call: ToolCall, because: str, *, contained: bool) -> str | None:
        digest = approvals.action_digest(call.name, call.arguments)
        text = summary(call)
        if len(text) > approvals.SUMMARY_CHARACTERS:
            return (
                f"Not run: it needs a person's approval ({because}) and is longer than the "
                f"{approvals.SUMMARY_CHARACTERS:,} characters that a person can be shown whole; do it in smaller steps."
            )
        approver = await self._questions.approver(self._taken, contained=contained)
        asking = NewApproval(kind="approval", tool=call.name, digest=digest, summary=text, may_answer=approver)
        try:
            row = await self._questions.put(self._taken, turn, step, asking)
        except Conflict as error:
            if error.code != "approval_differs":
                raise
            return ANOTHER
        if isinstance(row, str):
            return f"Not run: it needs a person's approval ({because}), and {row}."
        if (row.digest, row.may_answer) != (digest, approver):
            return ANOTHER
        return None if row.state == "approved" else self._refusal(row)

    async def ask(self, turn: Turn, step: str, question: str, choices: Sequence[str]) -> str:
        """The person's answer to a tool's question. A call may ask several, and may ask one again: each time is a
        question of its own, which a call that is made again after a crash finds in the same place."""
        digest = approvals.action_digest("", msgspec.json.encode([question, list(choices)]).decode())
        name = f"{step}-{digest.hex()[:16]}"
        nth = self._times[name]
        self._times[name] += 1
        asking = NewApproval(
            kind="question",
            tool="",
            digest=digest,
            summary=shown(question),
            choices=tuple(shown(choice, one_line=True) for choice in choices),
        )
        if len(asking.summary) > approvals.SUMMARY_CHARACTERS:
            raise ToolFailed(
                f"Nobody was asked: a question has at most {approvals.SUMMARY_CHARACTERS:,} characters; shorten it."
            )
        self._waiting[step] += 1
        try:
            row = await self._questions.put(self._taken, turn, f"{name}-{nth}", asking)
        except Refused as error:
            raise ToolFailed(f"Nobody was asked: {error.message}") from None
        self._waiting[step] -= 1
        if isinstance(row, str):
            raise ToolFailed(f"Nobody was asked: {row}. Decide yourself, or say what you would need to know.")
        if row.state == "answered":
            return row.answer or ""
        raise ToolFailed(self._refusal(row))

    async def withdraw(self, turn: Turn, step: str, *, lost: bool) -> None:
        if self._waiting.pop(step, 0) or lost:
            await self._questions.withdraw(turn, step)

    def _refusal(self, row: ApprovalRow) -> str:
        """Why there is no leave, or no answer. A call that asks a question has begun, and may have done something."""
        so = "" if row.kind == "question" else ", so nothing was done"
        if row.state == "denied":
            return f"Not run: the person denied it{f', and said: {row.answer}' if row.answer else '.'}"
        if row.state != "expired":
            return f"The question was withdrawn{so}."
        if self._policy.unanswered == "end":
            raise TurnFailed(
                "Nobody answered what the agent asked within limits.answer_within, so its turn was ended; say 'go on' "
                "when you are there to answer.",
                code="unanswered",
            )
        return f"Nobody answered in time (limits.answer_within){so}."


# -- what a person is shown ------------------------------------------------------------------------------------------


def summary(call: ToolCall) -> str:
    """The action as a person is shown it: the tool, and each of its arguments on lines of its own. Further lines of an
    argument are set in, so that none of them passes for another argument."""
    given = _arguments(call)
    lines = [call.name]
    for name, value in given.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        lines.append(f"{shown(name, one_line=True)}: " + shown(text).replace("\n", "\n    "))
    if not given and call.arguments.strip() not in ("", "{}"):
        lines.append(shown(call.arguments))
    return "\n".join(lines)


def _arguments(call: ToolCall) -> dict[str, Any]:
    """As a tool would read them; none of what no tool could read."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
