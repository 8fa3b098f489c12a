"""Workspaces: where the agents' commands run, one place per session.

Guarantee: what runs for a session is in its box, is written down before it is started, and is gone when the session has
ended or the gateway has; unloading a session touches none of it. The gateway's own environment and secrets are in none.
"""

from tidegate.workspaces.files import Files, Mount
from tidegate.workspaces.folders import enforce_trash_quota
from tidegate.workspaces.processes.process_view import OutputPage, ProcessView
from tidegate.workspaces.provenance import Provenance
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
