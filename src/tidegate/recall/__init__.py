"""Recall: search in earlier conversations, for agents. Imported only where an agent uses it."""

from tidegate.recall.recall import RecallService

__all__ = ["RecallService"]
