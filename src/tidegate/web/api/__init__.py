"""The gateway's own HTTP API, under `/api`."""
