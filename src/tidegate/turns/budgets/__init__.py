"""Budgets: limits on spending, and how much of each is spent."""
