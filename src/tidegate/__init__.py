"""Tidegate: an agent gateway that stays level."""

__version__ = "0.1.0"
