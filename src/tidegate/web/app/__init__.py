"""The ASGI application: routing, authentication, request bodies, error responses, health, metrics and page files."""
