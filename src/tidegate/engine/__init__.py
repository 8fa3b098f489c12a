"""The engine: what runs a session's turns one at a time and keeps their journal.

`EmbeddedEngine` runs them in this process over SQLite. The agent's loop is written against `agent.Turn` and knows no
engine. Above, a turn is handed in (`submit`, after its rows are written), followed (`log`, `result`), spoken into
(`signal`) and stopped (`interrupt`); the rest of its methods are about this process: what runs and waits here, and
how it comes to rest.
"""

from tidegate.engine.embedded import EmbeddedEngine, EngineStats
from tidegate.engine.failures import describe, stopped
from tidegate.engine.journal import Journal, slim
from tidegate.engine.live import Live
from tidegate.engine.log import TurnLog
from tidegate.engine.taking import INCOMING, Begun, Taken, begin_at_once

__all__ = [
    "INCOMING",
    "Begun",
    "EmbeddedEngine",
    "EngineStats",
    "Journal",
    "Live",
    "Taken",
    "TurnLog",
    "begin_at_once",
    "describe",
    "slim",
    "stopped",
]
