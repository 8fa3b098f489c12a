"""Commands that show and change settings: model, reasoning, status."""

import time
from typing import get_args

from tidegate.config import nearest
from tidegate.errors import Refused
from tidegate.sessions import SessionView
from tidegate.slash_commands import approvals
from tidegate.slash_commands.dispatch import CommandContext, CommandReply, SlashCommand
from tidegate.slash_commands.durations import span, split, until
from tidegate.turns import FALLBACK, FallbackState, fallback_reason
from tidegate.values import Reasoning, dollars

EFFORTS = get_args(Reasoning)
SOURCE = "command"

PARTS = 3
"""Number of parts of the window that /status lists."""


async def model(context: CommandContext, words: str) -> CommandReply:
    session = context.here()
    names = context.service.models
    name, lasts = split("model", words)
    if not name:
        lines = _model(context, await context.service.session(session, context.principal))
        lines.append(f"Available: {', '.join(names)}.")
        return CommandReply(text="\n".join(lines), session=session)
    if name == "default":
        for key in ("model", FALLBACK):
            await context.service.operations.clear_setting(session, context.principal, key)
        instead = (await context.service.session(session, context.principal)).fallback
        when = await _start(context) if instead is None else f"once it is back; until then {instead.model} answers"
        return CommandReply(text=f"The agent's own model again, {when}.", session=session)
    if name not in names:
        raise Refused(f"There is no model {name[:100]!r}{nearest(name, names)}", code="model_not_found")
    ends = await context.service.operations.choose_model(session, context.principal, name, lasts=lasts)
    when = await _period(context, ends)
    again = "" if lasts is None else ", and again when it ends"
    return CommandReply(text=f"{name}, {when}. The cached prefix is rebuilt once{again}.", session=session)


async def reasoning(context: CommandContext, words: str) -> CommandReply:
    session = context.here()
    effort, lasts = split("reasoning", words)
    if not effort:
        lines = _reasoning(context, await context.service.session(session, context.principal))
        lines.append(f"Available: {', '.join(EFFORTS)}.")
        return CommandReply(text="\n".join(lines), session=session)
    if effort == "default":
        await context.service.operations.clear_setting(session, context.principal, "reasoning")
        view = await context.service.session(session, context.principal)
        return CommandReply(
            text=f"{_reasoning_source(context, view).capitalize()} default again, {await _start(context)}.",
            session=session,
        )
    if effort not in EFFORTS:
        raise Refused(f"The reasoning effort must be one of {', '.join(EFFORTS)} or default.", code="bad_argument")
    ends = await context.service.operations.set_setting(
        session, context.principal, "reasoning", effort, source=SOURCE, lasts=lasts
    )
    when = await _period(context, ends)
    return CommandReply(text=f"Reasoning {effort}, {when}. Nothing is rebuilt.", session=session)


async def _period(context: CommandContext, ends: float | None) -> str:
    """Describes the period in which a setting applies."""
    begins = await _start(context)
    return begins if ends is None else f"{begins} {until(ends, context.service.now())}"


async def _start(context: CommandContext) -> str:
    running = context.session is not None and await context.service.is_running(context.session)
    return "from the next turn on" if running else "from now on"


async def status(context: CommandContext, _: str) -> CommandReply:
    view = await context.service.session(context.here(), context.principal)
    expiry = context.service.idle_expiry
    lines = [
        f"conversation  {view.title or view.name or view.id}",
        f"agent         {view.agent}",
        *_model(context, view),
        *_reasoning(context, view),
        *await _window_lines(context),
        f"used          {await _usage_text(context)}",
        f"ends          {'after ' + span(expiry) + ' without a message' if expiry else 'only with /new'}",
        f"running       {view.running or 'nothing'}, {view.waiting} waiting",
        *await _question_lines(context),
        f"since         {time.strftime('%Y-%m-%d %H:%M', time.localtime(view.created))}",
    ]
    return CommandReply(text="\n".join(lines), session=context.session)


async def _window_lines(context: CommandContext) -> list[str]:
    """Shows how full the model's window is and what takes the most room."""
    usage = await context.service.window_usage(context.here(), context.principal)
    about = "" if usage.counted else "about "
    share = f"{usage.tokens / usage.window:.0%}"
    parts = sorted(usage.parts, key=lambda part: -part.tokens)[:PARTS]
    most = ", ".join(f"{part.name} {part.tokens:,}" for part in parts)
    return [
        f"context       {about}{usage.tokens:,} of {usage.window:,} tokens ({share}); /context shows all of it",
        f"              {most}",
    ]


async def _usage_text(context: CommandContext) -> str:
    """Describes the usage of this conversation so far."""
    used = await context.service.usage_of(context.here(), context.principal)
    cached = f" ({used.cached / used.input:.0%} cached)" if used.cached else ""
    about = "about " if used.estimated else ""
    cost = f", {dollars(used.cost)}" if used.cost else ""
    return f"{about}{used.input:,} tokens in{cached}, {used.output:,} out{cost}"


async def _question_lines(context: CommandContext) -> list[str]:
    """Lists the questions in this conversation that the user can answer."""
    found = await context.service.questions.open_for(context.principal, session=context.session, limit=approvals.LISTED)
    return [f"asked         {line}" for line in approvals.listing(found).splitlines()]


def _model(context: CommandContext, view: SessionView) -> list[str]:
    """Describes the current model, the reason for its use, and the model that it overrides."""
    chosen = view.settings.get("model")
    agent = context.service.agent(view.agent)
    if agent is None:
        return [f"model         none: the agent {view.agent} is no longer configured"]
    if view.fallback is not None:
        return _fallback_lines(context, view.fallback)
    if chosen is None:
        return [f"model         {view.model} (the agent's own)"]
    if chosen.value != view.model:
        return [
            f"model         {view.model} (the agent's own)",
            f"              {chosen.value}, chosen with /model, is no longer configured; /model default clears it",
        ]
    return [
        f"model         {chosen.value} ({_setting_source(context, view, 'model')})",
        f"              it overrides the agent's own, {agent.model}; /model default resets it",
    ]


def _fallback_lines(context: CommandContext, fallen: FallbackState) -> list[str]:
    """Describes the fallback that currently replaces the agent's own model."""
    now = context.service.now()
    again = f"not before {until(fallen.until, now).removeprefix('until ')}" if fallen.until > now else "next"
    return [
        f"model         {fallen.model} (instead of the agent's own, {fallen.instead_of}, which "
        f"{fallback_reason(fallen)})",
        f"              {fallen.instead_of} is tried again {again}; after /model default, as soon as it is back",
    ]


def _reasoning(context: CommandContext, view: SessionView) -> list[str]:
    chosen = view.settings.get("reasoning")
    own = _reasoning_source(context, view)
    if chosen is None:
        agent = context.service.agent(view.agent)
        given = agent.reasoning if agent is not None else None
        return [f"reasoning     {own}" if given is None else f"reasoning     {given} ({own})"]
    return [
        f"reasoning     {chosen.value} ({_setting_source(context, view, 'reasoning')})",
        f"              it overrides {own}, and is overridden by the reasoning of a call;",
        "              /reasoning default resets it",
    ]


def _reasoning_source(context: CommandContext, view: SessionView) -> str:
    """Describes the source of the default reasoning effort."""
    agent = context.service.agent(view.agent)
    return "the model's own" if agent is None or agent.reasoning is None else "the agent's own"


def _setting_source(context: CommandContext, view: SessionView, key: str) -> str:
    """Describes a setting's source and expiry."""
    setting = view.settings[key]
    source = f"chosen with /{key}" if setting.source == SOURCE else f"set by {setting.source}"
    ends = setting.expires
    return f"{source}, {'until the conversation ends' if ends is None else until(ends, context.service.now())}"


COMMANDS = (
    SlashCommand(
        name="model",
        arguments="[NAME|default] [for TIME]",
        help="Show or choose the model of this conversation, until it ends or for a time such as 30m, 2h or 7d.",
        handler=model,
        cost="The cached prefix is rebuilt once, and again when the time runs out.",
        mid_turn="applies from the next turn",
    ),
    SlashCommand(
        name="reasoning",
        arguments="[EFFORT|default] [for TIME]",
        help=f"Show or choose the reasoning effort of this conversation ({', '.join(EFFORTS)}), until it ends or for a "
        "time such as 30m, 2h or 7d.",
        handler=reasoning,
        mid_turn="applies from the next turn",
    ),
    SlashCommand(
        name="status",
        help="Show this conversation's usage, and its settings with their source and expiry.",
        handler=status,
    ),
)
