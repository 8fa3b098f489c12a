"""Turns: running a turn, and the services that turns use.

`Runner` runs a turn for the engine. Approvals, budgets, compaction, delegation and model fallback each have a module or
package. `delegation` and `skill_reader` are imported only if an agent uses them, so they are not exported here.
"""

from tidegate.turns.approvals import Approvals, QuestionView
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.channel_recovery import CHANNELS, DELEGATE, Channel, Channels
from tidegate.turns.compaction.compaction import (
    COMPACTION_REQUESTED,
    REASONING_ERA,
    REDUCTIONS,
    SUMMARY_COOLDOWN,
    Compaction,
)
from tidegate.turns.fallback import KEY as FALLBACK
from tidegate.turns.fallback import FallbackState, fallback_reason
from tidegate.turns.runner import Runner, ServerTools
from tidegate.turns.stored_approvals import RuleView
from tidegate.turns.tool_env import ToolEnv
from tidegate.turns.window_usage import WindowUsage

__all__ = [
    "CHANNELS",
    "COMPACTION_REQUESTED",
    "DELEGATE",
    "FALLBACK",
    "REASONING_ERA",
    "REDUCTIONS",
    "SUMMARY_COOLDOWN",
    "Approvals",
    "Budgets",
    "Channel",
    "Channels",
    "Compaction",
    "FallbackState",
    "QuestionView",
    "RuleView",
    "Runner",
    "ServerTools",
    "ToolEnv",
    "WindowUsage",
    "fallback_reason",
]
