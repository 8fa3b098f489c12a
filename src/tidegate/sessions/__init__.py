"""Sessions: the door that every message enters by, and all that may be done to a conversation.

The way of a message: `Sessions.accept` (inbox, one transaction) → the session's queue → a turn of the engine, worked by
`Runner` → its answer in the store, fetched by whoever asked. Ends, expiry and recovery run from the store.
"""

from tidegate.memory.views import Notebook, NoteView
from tidegate.sessions.lifecycle import EndHook
from tidegate.sessions.maintenance import MaintenanceTask
from tidegate.sessions.service import Sessions
from tidegate.sessions.views import AgentView, SessionView, SettingView
from tidegate.status_report import BudgetView
from tidegate.turns.approvals import QuestionView
from tidegate.turns.channels import CHANNELS, DELEGATE, Channel, Channels
from tidegate.turns.fallback import KEY as FALLBACK
from tidegate.turns.fallback import FallbackState, reason
from tidegate.turns.window_usage import WindowUsage

__all__ = [
    "CHANNELS",
    "DELEGATE",
    "FALLBACK",
    "AgentView",
    "BudgetView",
    "Channel",
    "Channels",
    "EndHook",
    "FallbackState",
    "MaintenanceTask",
    "NoteView",
    "Notebook",
    "QuestionView",
    "SessionView",
    "Sessions",
    "SettingView",
    "WindowUsage",
    "reason",
]
