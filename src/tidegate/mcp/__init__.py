"""MCP: the tool servers that the operator configures. Each is supervised and limited.

- `servers.py`: `McpServers`, all servers of the gateway; `server.py`: one running server and the requests to it.
- `connection.py`: one connection over the SDK; `transports.py`, `stdio.py`: how it reaches the server.
- `message_limits.py`: the limits for what a server sends; `listing.py`: what it offers, cleaned and bounded.
- `server_tools.py`: its tools as agents call them; `results.py`, `elicitation.py`: results and questions.

The SDK (the `mcp` package, an extra) takes more than 30 MB, so only `connection.py`, `transports.py`, `stdio.py` and
`results.py` import it, when a server is first connected.
"""

from tidegate.mcp.listing import ListedPrompt, ListedTool, ServerListing
from tidegate.mcp.servers import CHECK_SECONDS, NOT_INSTALLED, McpServers, is_installed

__all__ = [
    "CHECK_SECONDS",
    "NOT_INSTALLED",
    "ListedPrompt",
    "ListedTool",
    "McpServers",
    "ServerListing",
    "is_installed",
]
