"""Tidegate: an agent gateway with stable memory."""

__version__ = "0.1.0"
