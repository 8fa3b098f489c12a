"""Facts about models: windows, abilities and prices, from `catalog.toml` and the configuration."""
