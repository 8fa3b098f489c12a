"""Facts about models: windows, capabilities and prices, from `catalog.toml` and the configuration."""
