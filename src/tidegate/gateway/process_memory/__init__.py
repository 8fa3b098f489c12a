"""The memory of the gateway process: accounting, limit, allocator, and unloading under pressure."""
