"""The store's use of SQLite: connections, the writer thread, the reader threads, and the health of the files."""
