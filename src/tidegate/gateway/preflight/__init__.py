"""Checks of the configuration before a gateway starts."""
