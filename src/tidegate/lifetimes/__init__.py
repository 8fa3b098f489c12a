"""Lifetimes: who owns each of the process's resources, and when it is released.

Every resource belongs to exactly one lifetime: process, session, resident or turn. A `Scope` is such a lifetime; the
`Ledger` accounts for what each lifetime holds; `Presence` is the only map keyed by session; `BoundedCache` is the only
cache; `ProcessStarter` starts every child process; `Listener` accepts every connection, within the limit set by
`Descriptors`; a `Supervisor` keeps a service running. This package imports nothing else from the project except values
for the status.
"""

from tidegate.lifetimes.cache import BoundedCache, CacheStats
from tidegate.lifetimes.child_process import KILLED_SECONDS, ProcessStarter, SpawnedProcess
from tidegate.lifetimes.concurrency import SingleFlight, gather, is_cancelled
from tidegate.lifetimes.descriptors import Descriptors
from tidegate.lifetimes.ledger import Account, Hold, Ledger
from tidegate.lifetimes.listener import Listener, Room
from tidegate.lifetimes.residency import Presence, PresenceStats, Present, Resident, SessionEnded
from tidegate.lifetimes.scope import Scope, ScopeClosed, outlast
from tidegate.lifetimes.supervisor import (
    RestartPolicy,
    ServiceConnection,
    ServiceConnector,
    ServiceFailed,
    Supervisor,
    stop_all,
)
from tidegate.status_report import Holding, ServiceFault, ServiceState, ServiceStatus

__all__ = [
    "KILLED_SECONDS",
    "Account",
    "BoundedCache",
    "CacheStats",
    "Descriptors",
    "Hold",
    "Holding",
    "Ledger",
    "Listener",
    "Presence",
    "PresenceStats",
    "Present",
    "ProcessStarter",
    "Resident",
    "RestartPolicy",
    "Room",
    "Scope",
    "ScopeClosed",
    "ServiceConnection",
    "ServiceConnector",
    "ServiceFailed",
    "ServiceFault",
    "ServiceState",
    "ServiceStatus",
    "SessionEnded",
    "SingleFlight",
    "SpawnedProcess",
    "Supervisor",
    "gather",
    "is_cancelled",
    "outlast",
    "stop_all",
]
