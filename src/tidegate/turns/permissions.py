"""The permissions of one turn's tools, and the questions that these tools ask a person.

The policy decides on each individual call. A call that needs approval runs only if its approval row, read immediately
before, is approved and has the digest of exactly this call. If the approval is denied, expires or cannot be requested,
the tool result tells the model why. If the agent is configured that way, expiry ends the turn. The approver sees the
complete action; an action that is too long to show is refused. A task is also subject to the policies of all agents
that have delegated it; the strictest policy applies. A call that would have to be asked about runs without a question
if an approval that covers it was stored (`stored_approvals.py`). A denial is decided before.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tidegate.agent import Turn
from tidegate.config import Config
from tidegate.engine import TakenTurn
from tidegate.errors import Conflict, Refused, ToolFailed, TurnFailed
from tidegate.safe_text import escape_invisible
from tidegate.security.policy import Action, Mode, PolicyRule, decide, parse, strictest
from tidegate.store import ApprovalRow, NewApproval, RuleOffer, approvals
from tidegate.tools import Tool
from tidegate.turns.approvals import Approvals
from tidegate.turns.stored_approvals import CONTAINED
from tidegate.values import Frozen, ToolCall
from tidegate.workspaces import Workspace

ANOTHER = "Not run: the approval of this step was for a different action, and is not valid for this one."

RULE_CHARACTERS = 4_000
"""The longest exact action that can be approved for more than one call, as it is shown. A list of stored approvals must
stay readable."""


class Policy(Frozen, frozen=True):
    """An agent's policy: which tool calls need no approval, and what happens to a turn whose question is not
    answered."""

    mode: Mode
    rules: tuple[PolicyRule, ...]
    unanswered: Literal["go_on", "end"]


_STRICTEST = Policy(mode="strict", rules=(), unanswered="end")


def policies(config: Config) -> Mapping[str, Policy]:
    """Returns each agent's policy. Raises Misconfigured if a rule is invalid."""
    return {
        name: Policy(
            mode=agent.approvals, rules=tuple(parse(rule) for rule in agent.rules), unanswered=agent.unanswered
        )
        for name, agent in config.agents.items()
    }


class TurnPermissions:
    """One turn's permissions. Owned by the turn."""

    def __init__(
        self, questions: Approvals, policies: Mapping[str, Policy], taken: TakenTurn, workspace: Workspace
    ) -> None:
        self._questions = questions
        self._policies = policies
        self._policy = policies[taken.session.agent]
        self._in_force: tuple[tuple[str, Policy], ...] = ()  # with the agent of each policy
        self._taken = taken
        self._workspace = workspace
        # lint: allow lives as long as the turn; a question → how often its step has asked it
        self._times: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()  # step → the number of its open questions

    async def permit(self, turn: Turn, step: str, tool: Tool, call: ToolCall) -> str | None:
        policies = self._in_force or await self._find_policies()
        has_rules = any(policy.rules for _, policy in policies)
        if tool.effect == "read" and not tool.asks and not has_rules:
            return None
        action = Action(
            tool=tool.name,
            effect=tool.effect,
            arguments=_arguments(call) if has_rules else {},
            channel=await self._questions.channel(self._taken) if has_rules else "",
            contained=tool.contained and (tool.effect != "execute" or await self._workspace.sandboxed()),
            asks=tool.asks,
        )
        verdicts = [(agent, decide(policy.rules, policy.mode, action)) for agent, policy in policies]
        verdict = strictest(verdict for _, verdict in verdicts)
        if verdict.decision == "allow":
            return None
        if verdict.decision == "deny":
            return f"Not run: denied ({verdict.because})."
        grounds = {(agent, verdict.because) for agent, verdict in verdicts if verdict.decision == "ask"}
        offer = await self._offer(tool, call, grounds, contained=action.contained)
        return await self._ask_approval(turn, step, call, verdict.because, offer, contained=action.contained)

    async def _find_policies(self) -> tuple[tuple[str, Policy], ...]:
        """Returns the agent's policy and the policies of the agents that delegated its task. For an agent that is no
        longer configured, the strictest policy applies."""
        delegating_agents = await self._questions.delegating_agents(self._taken)
        self._in_force = (
            (self._taken.session.agent, self._policy),
            *((agent, self._policies.get(agent, _STRICTEST)) for agent in delegating_agents),
        )
        return self._in_force

    async def _offer(self, tool: Tool, call: ToolCall, grounds: set[tuple[str, str]], *, contained: bool) -> RuleOffer:
        """Returns what an approval of this call allows if it is given for more than the call."""
        place = "elsewhere"
        if contained:
            place = CONTAINED
        elif tool.effect == "execute":
            place = await self._workspace.backend_name()
        return RuleOffer(
            principal=self._taken.session.principal,
            agent=self._taken.session.agent,
            tool=tool.name,
            origin=tool.owner,
            fingerprint=tool.fingerprint,
            place=place,
            grounds=tuple(sorted(grounds)),
            digest=approvals.action_digest(call.name, call.arguments) if tool.covers_exact_calls else None,
        )

    async def _ask_approval(
        self, turn: Turn, step: str, call: ToolCall, because: str, offer: RuleOffer, *, contained: bool
    ) -> str | None:
        digest = approvals.action_digest(call.name, call.arguments)
        text = summary(call)
        if len(text) > approvals.SUMMARY_CHARACTERS:
            return (
                f"Not run: it needs a person's approval ({because}) and is longer than the "
                f"{approvals.SUMMARY_CHARACTERS:,} characters that can be shown to a person; do it in smaller steps."
            )
        approver = await self._questions.approver(self._taken, contained=contained)
        request = NewApproval(
            kind="approval",
            tool=call.name,
            digest=digest,
            summary=text,
            may_answer=approver,
            offer=offer if offer.digest is None or len(text) <= RULE_CHARACTERS else None,
        )
        if await self._questions.stored.allow(turn, step, request):
            return None
        try:
            row = await self._questions.ask(self._taken, turn, step, request)
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
        """Asks a person a tool's question and returns the answer. A call may ask several questions, and may ask one
        more than once. Each question is stored separately, and a call that is repeated after a crash finds its
        questions again."""
        digest = approvals.action_digest("", msgspec.json.encode([question, list(choices)]).decode())
        name = f"{step}-{digest.hex()[:16]}"
        nth = self._times[name]
        self._times[name] += 1
        request = NewApproval(
            kind="question",
            tool="",
            digest=digest,
            summary=escape_invisible(question),
            choices=tuple(escape_invisible(choice, one_line=True) for choice in choices),
        )
        if len(request.summary) > approvals.SUMMARY_CHARACTERS:
            raise ToolFailed(
                f"Nobody was asked: a question may have up to {approvals.SUMMARY_CHARACTERS:,} characters; shorten it."
            )
        self._waiting[step] += 1
        try:
            row = await self._questions.ask(self._taken, turn, f"{name}-{nth}", request)
        except Refused as error:
            raise ToolFailed(f"Nobody was asked: {error.message}") from None
        self._waiting[step] -= 1
        if isinstance(row, str):
            raise ToolFailed(f"Nobody was asked: {row}. Make the decision yourself, or state what you need to know.")
        if row.state == "answered":
            return row.answer or ""
        raise ToolFailed(self._refusal(row))

    async def withdraw(self, turn: Turn, step: str, *, lost: bool) -> None:
        if self._waiting.pop(step, 0) or lost:
            await self._questions.withdraw(turn, step)

    def _refusal(self, row: ApprovalRow) -> str:
        """Returns the reason why there is no approval or no answer. A call that has asked a question was already
        running and may have had effects."""
        consequence = "" if row.kind == "question" else ", so nothing was done"
        if row.state == "denied":
            return f"Not run: the person denied it{f', and said: {row.answer}' if row.answer else '.'}"
        if row.state != "expired":
            return f"The question was withdrawn{consequence}."
        if self._policy.unanswered == "end":
            raise TurnFailed(
                "Nobody answered the agent's question within limits.answer_within, so its turn was stopped; say 'go "
                "on' when you can answer.",
                code="unanswered",
            )
        return f"Nobody answered in time (limits.answer_within){consequence}."


# -- the display of an action --


def summary(call: ToolCall) -> str:
    """Returns the action as shown to a person: the tool, followed by each argument on a new line. An argument's
    continuation lines are indented, so they cannot be mistaken for another argument. An action that is too long to show
    is cut somewhere above `SUMMARY_CHARACTERS`, since preparing all of it could take a long time."""
    most = approvals.SUMMARY_CHARACTERS + 1
    arguments = _arguments(call)
    lines = [call.name]
    length = len(call.name)
    for name, value in arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        label, content = escape_invisible(name[:most], one_line=True), escape_invisible(text[:most])
        lines.append(f"{label}: " + content.replace("\n", "\n    "))
        length += len(lines[-1])
        if length > most:
            break
    if not arguments and call.arguments.strip() not in ("", "{}"):
        lines.append(escape_invisible(call.arguments[:most]))
    return "\n".join(lines)


def _arguments(call: ToolCall) -> dict[str, Any]:
    """Returns the arguments as a tool would read them; empty if they are invalid."""
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
