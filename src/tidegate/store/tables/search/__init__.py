"""The search index of messages and titles, and the searches in it."""
