"""The tables of turns: turns, intents of tool calls, receipts of accepted messages, and deliveries of answers."""
