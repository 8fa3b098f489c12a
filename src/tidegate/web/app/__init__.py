"""The ASGI application: routing, authentication, request bodies, error responses, health checks, metrics and page
files."""
