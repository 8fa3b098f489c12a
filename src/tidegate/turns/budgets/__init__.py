"""Budgets: limits on spending, and how much has been spent."""
