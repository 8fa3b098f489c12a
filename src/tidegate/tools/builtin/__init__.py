"""The toolsets that come with the gateway: one module or package for each, loaded when an agent uses it."""
