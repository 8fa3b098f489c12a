"""Facts about models: windows, abilities and prices."""
