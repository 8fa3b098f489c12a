"""The `web` toolset: fetching pages and files from the web, and searching it."""

from tidegate.tools.builtin.web.tools import web_fetch, web_search

__all__ = ["web_fetch", "web_search"]
