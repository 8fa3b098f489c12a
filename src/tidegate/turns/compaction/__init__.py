"""Compaction: keeping a conversation within its model's context window without losing a word of its transcript."""
