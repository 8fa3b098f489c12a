"""Budgets: limits on spending, and how much of each has been spent."""
