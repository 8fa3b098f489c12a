"""Budgets: limits on spending, and the amount spent of each."""
