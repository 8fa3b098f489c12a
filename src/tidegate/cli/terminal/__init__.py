"""The terminal client: reading lines, printing answers, asking the user."""
