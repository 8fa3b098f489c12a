"""A workspace's commands and background processes."""
