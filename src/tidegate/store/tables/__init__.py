"""The tables of the store, one module each: functions that take a connection."""
