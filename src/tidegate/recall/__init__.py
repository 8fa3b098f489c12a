"""Recall: lets agents search earlier conversations. Imported only if an agent uses it."""

from tidegate.recall.recall import RecallService

__all__ = ["RecallService"]
