"""How a turn is run: its model and fallbacks, its tools and approvals, its budgets, its place in the model's window."""
