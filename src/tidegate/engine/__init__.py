"""The engine: runs each session's turns one at a time and keeps their journals.

`Engine` is the interface that the packages above use; `agent.Turn` is the interface that the agent loop uses. A
different engine can be used by implementing both. `build_engine` returns the embedded engine, which runs turns in this
process and stores them in the database. Nothing else of it is visible outside this package.
"""

from tidegate.engine.embedded import build_engine
from tidegate.engine.interface import PARENT_ENDED, Engine, Handler, NewTurn, StartedTurn, TakenTurn
from tidegate.engine.turn_log import TurnLog

__all__ = ["PARENT_ENDED", "Engine", "Handler", "NewTurn", "StartedTurn", "TakenTurn", "TurnLog", "build_engine"]
