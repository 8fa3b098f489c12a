"""The gateway's own HTTP API (`/api`), the list of models, and the endpoints for health checks and metrics."""
