"""Answers for clients of HTTP/1.0, which know no chunks.

Guarantee: an answer that says its length is sent as ever; one that is streamed goes out as it is and ends with its
connection.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Http10Response:
    """Takes the place of a request's `send`."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._streams = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._streams = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._streams:
                self._cycle.chunked_encoding = False
        elif self._streams:
            self._cycle.expected_content_length = len(message.get("body", b""))  # each piece is all that is promised
        await self._send(message)
