"""Memory of the gateway process: its accounting, its limit, the allocator, and unloading under pressure."""
