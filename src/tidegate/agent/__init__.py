"""The agent: its loop, its conversation with the model, and the interface that it expects from an engine.

All code in this package depends only on `Turn`, so the same loop can run in this process or on a distributed engine.
"""

from tidegate.agent.conversation import Conversation, weigh
from tidegate.agent.history_cache import HistoryCache, HistoryState
from tidegate.agent.interface import EXCERPT_CHARACTERS, Effect, Parked, Turn
from tidegate.agent.loop import Bounds, run
from tidegate.agent.model_step import Budget, Meter, ModelStep, Payer, Remedy, RequestFitter, SpendGuard, TurnResident
from tidegate.agent.prefix import EXTRA, PROMPT, build_prefix, part_of
from tidegate.agent.side_call import SideCall, run_metered, run_side_call
from tidegate.agent.tool_results import in_call_order, interrupted, is_balanced, missing, not_run, tool_ended
from tidegate.agent.tool_runner import Permissions, ToolRunner, ToolSetup

__all__ = [
    "EXCERPT_CHARACTERS",
    "EXTRA",
    "PROMPT",
    "Bounds",
    "Budget",
    "Conversation",
    "Effect",
    "HistoryCache",
    "HistoryState",
    "Meter",
    "ModelStep",
    "Parked",
    "Payer",
    "Permissions",
    "Remedy",
    "RequestFitter",
    "SideCall",
    "SpendGuard",
    "ToolRunner",
    "ToolSetup",
    "Turn",
    "TurnResident",
    "build_prefix",
    "in_call_order",
    "interrupted",
    "is_balanced",
    "missing",
    "not_run",
    "part_of",
    "run",
    "run_metered",
    "run_side_call",
    "tool_ended",
    "weigh",
]
