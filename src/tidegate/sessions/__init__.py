"""Sessions: accepting messages, and all operations on conversations.

A message goes through `Sessions.accept` (one transaction) into the queue of its session. The engine starts a turn for
it, `turns.Runner` runs the turn, and the answer is stored for the caller to fetch. Ending, expiry and recovery work
from the store.
"""

from tidegate.sessions.components import Components, build_components
from tidegate.sessions.lifecycle import EndHook
from tidegate.sessions.maintenance import MaintenanceTask
from tidegate.sessions.service import Sessions
from tidegate.sessions.views import AgentView, SessionView, SettingView

__all__ = [
    "AgentView",
    "Components",
    "EndHook",
    "MaintenanceTask",
    "SessionView",
    "Sessions",
    "SettingView",
    "build_components",
]
