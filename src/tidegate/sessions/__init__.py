"""Sessions: the door that every message enters by, and all that may be done to a conversation.

The way of a message: `Sessions.accept` (inbox, one transaction) → the session's queue → a turn of the engine, worked by
`Runner` → its answer in the store, fetched by whoever asked. Ends, expiry and recovery run from the store.
"""

from tidegate.sessions.budgets import BudgetView
from tidegate.sessions.channels import CHANNELS, DELEGATE, Channel, Channels
from tidegate.sessions.chores import Chore
from tidegate.sessions.door import Sessions
from tidegate.sessions.ending import EndHook
from tidegate.sessions.filling import Filling
from tidegate.sessions.substitutes import KEY as FALLBACK
from tidegate.sessions.substitutes import Fallen, reason
from tidegate.sessions.views import AgentView, Notebook, NoteView, QuestionView, SessionView, SettingView

__all__ = [
    "CHANNELS",
    "DELEGATE",
    "FALLBACK",
    "AgentView",
    "BudgetView",
    "Channel",
    "Channels",
    "Chore",
    "EndHook",
    "Fallen",
    "Filling",
    "NoteView",
    "Notebook",
    "QuestionView",
    "SessionView",
    "Sessions",
    "SettingView",
    "reason",
]
