"""Sessions: accepting messages, and all operations on conversations.

`Sessions.accept` puts a message into its session's queue, in one transaction. The engine starts a turn for it,
`turns.Runner` runs the turn, and the answer is stored for the caller to fetch. Ending, expiry and recovery are based on
the store alone.
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
