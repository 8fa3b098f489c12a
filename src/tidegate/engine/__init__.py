"""The engine: runs the turns of each session one at a time and keeps their journal.

`Engine` is the interface that the sessions package uses; `agent.Turn` is the interface that the agent loop uses. A
different engine can be used by implementing both. `EmbeddedEngine` runs turns in this process and keeps them in the
store. Its additional methods concern this process: they list the turns that run and wait here, and shut the engine
down.
"""

from tidegate.agent import Parked
from tidegate.engine.embedded import PARENT_ENDED, EmbeddedEngine
from tidegate.engine.interface import Engine
from tidegate.engine.journal import Journal, slim, without_bytes
from tidegate.engine.live_turn import LiveTurn, StartedTurn, TakenTurn
from tidegate.engine.turn_failures import failure_of, stopped_failure
from tidegate.engine.turn_lifecycle import accept_and_start
from tidegate.engine.turn_log import TurnLog
from tidegate.status_report import EngineStats

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
