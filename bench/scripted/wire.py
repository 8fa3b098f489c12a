"""HTTP/1.1 as bytes: replies, chunks, events. Pure functions and constants."""

EVENT_STREAM = b"text/event-stream; charset=utf-8"
END = b"0\r\n\r\n"
"""The chunk that ends a streamed answer."""


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(name: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, data)


def stream_head(extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (EVENT_STREAM, extra)


def reply_of(
    status: int, body: bytes, *, kind: str = "application/json", extra: str = "", close: bool = False
) -> bytes:
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
    return head.encode() + (b"Connection: close\r\n\r\n" if close else b"\r\n") + body


def credential_of(headers: dict[str, str]) -> str:
    """The value of the credential header, or empty."""
    return headers.get("x-api-key") or headers.get("authorization", "")
