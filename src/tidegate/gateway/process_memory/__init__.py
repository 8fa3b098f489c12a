"""The gateway process's memory: accounting, limit, allocator, and unloading under pressure."""
