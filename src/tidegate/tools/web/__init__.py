"""The toolset `web`: pages and files of the web, and searches in it."""

from tidegate.tools.web.tools import web_fetch, web_search

__all__ = ["web_fetch", "web_search"]
