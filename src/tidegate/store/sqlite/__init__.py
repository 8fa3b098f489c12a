"""SQLite behind the store: connections, the writer thread, the readers, and the health of the files."""
