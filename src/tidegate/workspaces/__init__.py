"""Workspaces: the folder, sandbox and processes in which an agent's commands run, one per session.

Everything that runs for a session runs in its sandbox and is recorded before it is started. When the session or the
gateway ends, all of it is stopped; unloading a session does not affect it. The gateway's own environment and secrets
are never visible to commands.
"""

from tidegate.workspaces.files import Files, Mount
from tidegate.workspaces.processes.process_view import OutputPage, ProcessView
from tidegate.workspaces.provenance import Provenance
from tidegate.workspaces.session_folders import enforce_trash_quota
from tidegate.workspaces.workspace import CommandEnd, WaitResult, Workspace
from tidegate.workspaces.workspaces import RECONCILE_SECONDS, TIDY_SECONDS, Workspaces

__all__ = [
    "RECONCILE_SECONDS",
    "TIDY_SECONDS",
    "CommandEnd",
    "Files",
    "Mount",
    "OutputPage",
    "ProcessView",
    "Provenance",
    "WaitResult",
    "Workspace",
    "Workspaces",
    "enforce_trash_quota",
]
