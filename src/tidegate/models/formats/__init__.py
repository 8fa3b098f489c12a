"""The wire formats of model providers, and what they have in common."""
