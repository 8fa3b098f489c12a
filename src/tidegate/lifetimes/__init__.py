"""Lifetimes: who owns what the process holds, and when it is let go.

Everything in the house belongs to exactly one lifetime: process, session, resident or turn. A `Scope` is such a
lifetime; a `Ledger` says what each holds; `Presence` is the one map keyed by session; `BoundedCache` is the only cache;
a `ProcessStarter` starts every process that is started; a `Listener` accepts every connection, within the `Descriptors`.
This room imports nothing of the project.
"""

from tidegate.lifetimes.cache import BoundedCache, CacheStats
from tidegate.lifetimes.cancelled import is_cancelled
from tidegate.lifetimes.child_process import KILLED_SECONDS, ProcessStarter, SpawnedProcess
from tidegate.lifetimes.descriptors import Descriptors
from tidegate.lifetimes.gather import gather
from tidegate.lifetimes.ledger import Account, Hold, Holding, Ledger
from tidegate.lifetimes.listener import Listener, Room
from tidegate.lifetimes.presence import Presence, PresenceStats, Present, Resident, SessionEnded
from tidegate.lifetimes.scope import Scope, ScopeClosed, outlast
from tidegate.lifetimes.single_flight import SingleFlight

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
    "Room",
    "Scope",
    "ScopeClosed",
    "SessionEnded",
    "SingleFlight",
    "SpawnedProcess",
    "gather",
    "is_cancelled",
    "outlast",
]
