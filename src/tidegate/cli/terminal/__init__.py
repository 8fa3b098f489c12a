"""The terminal client: line input, output and agents' questions."""
