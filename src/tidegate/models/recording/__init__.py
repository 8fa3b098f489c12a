"""The traffic with models, written down without secrets and played again. Loaded only when a gateway is told to."""
