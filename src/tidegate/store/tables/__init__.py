"""The store's tables, with one module per kind of row. Each module consists of functions that take a connection."""
