"""The tables of the store, one module per noun: functions that take a connection."""
