"""Recall: search in earlier messages and tool results, for the tools of the toolset `context`."""
