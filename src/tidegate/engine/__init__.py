"""The engine: what runs a session's turns one at a time and keeps their journal.

`Engine` is what the sessions room asks of it, `agent.Turn` what the loop asks; between the two another engine can
stand. `EmbeddedEngine` runs turns in this process over SQLite; its further methods are about this process: what runs
and waits here, and how it comes to rest.
"""

from tidegate.agent import Parked
from tidegate.engine.embedded import TASK_OF_NONE, EmbeddedEngine
from tidegate.engine.interface import Engine
from tidegate.engine.journal import Journal, slim, without_bytes
from tidegate.engine.live import LiveTurn
from tidegate.engine.turn_failures import describe, stopped
from tidegate.engine.turn_log import TurnLog
from tidegate.engine.turn_start import StartedTurn, TakenTurn, begin_at_once
from tidegate.status_report import EngineStats

__all__ = [
    "TASK_OF_NONE",
    "EmbeddedEngine",
    "Engine",
    "EngineStats",
    "Journal",
    "LiveTurn",
    "Parked",
    "StartedTurn",
    "TakenTurn",
    "TurnLog",
    "begin_at_once",
    "describe",
    "slim",
    "stopped",
    "without_bytes",
]
