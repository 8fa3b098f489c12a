"""SQLite for the store: connections, the writer thread, the reader threads, and the health of the files."""
