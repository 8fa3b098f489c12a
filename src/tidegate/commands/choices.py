"""Commands that choose and show: model, reasoning, status."""

import time
from typing import get_args

from tidegate.commands.registry import Command, Context, Reply
from tidegate.errors import Refused
from tidegate.sessions import changes
from tidegate.values import Reasoning

EFFORTS = get_args(Reasoning)
SOURCE = "command"


async def model(context: Context, name: str) -> Reply:
    session = context.here()
    names = context.door.models
    if not name:
        view = await context.door.session(session, context.principal)
        others = ", ".join(names)
        return Reply(text=f"This conversation uses {view.model}. There are: {others}.", session=session)
    if name == "default":
        await changes.clear_setting(context.door, session, context.principal, "model")
        return Reply(text=f"The agent's own model again, {_when(context)}.", session=session)
    if name not in names:
        raise Refused(f"There is no model {name!r}; there are: {', '.join(names)}.", code="model_not_found")
    await changes.set_setting(context.door, session, context.principal, "model", name, source=SOURCE)
    return Reply(text=f"{name}, {_when(context)}. The cached prefix is rebuilt once.", session=session)


async def reasoning(context: Context, effort: str) -> Reply:
    session = context.here()
    if effort == "default":
        await changes.clear_setting(context.door, session, context.principal, "reasoning")
        return Reply(text=f"The model's own default again, {_when(context)}.", session=session)
    if effort not in EFFORTS:
        raise Refused(f"Reasoning is one of {', '.join(EFFORTS)} or default.", code="bad_argument")
    await changes.set_setting(context.door, session, context.principal, "reasoning", effort, source=SOURCE)
    return Reply(text=f"Reasoning {effort}, {_when(context)}. Nothing is rebuilt.", session=session)


def _when(context: Context) -> str:
    running = context.session is not None and context.door.engine.running(context.session) is not None
    return "from the next turn on" if running else "from now on"


async def status(context: Context, _: str) -> Reply:
    view = await context.door.session(context.here(), context.principal)
    agent = context.door.config.agents.get(view.agent)
    lines = [
        f"conversation  {view.title or view.name or view.id}",
        f"agent         {view.agent}",
        f"model         {view.model} ({'chosen here by /model' if 'model' in view.settings else 'the agent’s own'})",
    ]
    if agent is not None and "model" in view.settings and agent.model != view.model:
        lines.append(f"              the agent's own is {agent.model}; /model default goes back to it")
    for key, setting in view.settings.items():
        if key != "model":
            lines.append(f"{key:13} {setting.value} (by {setting.source})")
    expiry = context.door.config.expiry.named_idle
    lines.append(f"ends          {'after ' + _days(expiry) + ' without a message' if expiry else 'only by /new'}")
    lines.append(f"running       {view.running or 'nothing'}, {view.waiting} waiting")
    lines.append(f"since         {time.strftime('%Y-%m-%d %H:%M', time.localtime(view.created))}")
    return Reply(text="\n".join(lines), session=context.session)


def _days(seconds: float) -> str:
    return f"{seconds / 86400:g} days" if seconds >= 86400 else f"{seconds / 3600:g} hours"


COMMANDS = (
    Command(
        name="model",
        arguments="[NAME|default]",
        help="Show or choose the model of this conversation.",
        handler=model,
        cost="The cached prefix is rebuilt once.",
        mid_turn="applies from the next turn",
    ),
    Command(
        name="reasoning",
        arguments=f"{'|'.join(EFFORTS)}|default",
        help="How hard the model thinks in this conversation.",
        handler=reasoning,
        mid_turn="applies from the next turn",
    ),
    Command(name="status", help="What this conversation uses, and where that comes from.", handler=status),
)
