"""Recall: search in earlier conversations, for agents. Imported only where an agent uses it."""

from tidegate.recall.recall import RecallService
from tidegate.recall.search_index import find_index

__all__ = ["RecallService", "find_index"]
