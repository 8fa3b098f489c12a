"""HTTP: the APIs, the chat page, health checks and metrics.

`create_app` builds the application from the subpackages; `Server` serves it on a bound socket inside a scope.
Other packages use only the names exported here.
"""

from tidegate.web.app.app import App, create_app
from tidegate.web.app.health import Health
from tidegate.web.http1.server import Server

__all__ = ["App", "Health", "Server", "create_app"]
