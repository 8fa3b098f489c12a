"""HTTP: the API, the page, health and metrics.

`create_app` builds the application from the rooms below; `Server` serves it on a bound socket inside a scope. Nothing
else of this room is for use from outside.
"""

from tidegate.status_report import Check, Readiness
from tidegate.web.app.app import App, create_app
from tidegate.web.app.health import Health
from tidegate.web.http1.server import Server

__all__ = ["App", "Check", "Health", "Readiness", "Server", "create_app"]
