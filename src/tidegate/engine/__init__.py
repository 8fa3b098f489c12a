"""The engine: what runs a session's turns one at a time and keeps their journal.

`Engine` is what the sessions room asks of it, `agent.Turn` what the loop asks; between the two another engine can
stand. `EmbeddedEngine` runs turns in this process over SQLite; its further methods are about this process: what runs
and waits here, and how it comes to rest.
"""

from tidegate.agent import Parked
from tidegate.engine.embedded import PARENT_ENDED, EmbeddedEngine, EngineStats
from tidegate.engine.interface import Engine
from tidegate.engine.journal import Journal, slim, without_bytes
from tidegate.engine.live import LiveTurn
from tidegate.engine.turn_failures import failure_of, stopped_failure
from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn, TakenTurn, accept_and_start

__all__ = [
    "PARENT_ENDED",
    "EmbeddedEngine",
    "Engine",
    "EngineStats",
    "Journal",
    "LiveTurn",
    "Parked",
    "StartedTurn",
    "TakenTurn",
    "TurnLog",
    "accept_and_start",
    "failure_of",
    "slim",
    "stopped_failure",
    "without_bytes",
]
