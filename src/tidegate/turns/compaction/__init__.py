"""Compaction: keeping a conversation within its model's window without losing a word of its transcript."""
