"""Failures of requests to servers, named by what the caller can do about them."""

from tidegate.errors import ToolFailed


class NotSent(Exception):
    """A request was not sent, so it can be sent again."""


class CallFailed(Exception):
    """The server answered a request with an error. The message is the server's."""


class ConnectionLost(Exception):
    """The connection ended during a request, whose effect is therefore unknown."""


class CutShort(ToolFailed):
    """A call started but did not finish, so its effect is unknown."""
