"""Sessions: accepting messages, and everything that may be done with a conversation.

A message goes through `Sessions.accept` (one transaction) into the queue of its session. The engine takes it as a turn,
`turns.Runner` runs the turn, and the answer is stored, where its caller fetches it. Ends, expiry and recovery run from
the store.
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
