"""Tables for turns: the turns themselves, tool calls' intents, accepted messages' receipts, and deliveries of
answers."""
