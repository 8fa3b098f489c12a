"""The address of a model's endpoint, parsed once.

A host or path in any script is sent as ASCII. `shown` is the address for messages and logs. The configuration checks
that no header value contains a line break and that no header sets the length of a request.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from tidegate.errors import Misconfigured
from tidegate.models.http.clients import Origin

_PORTS = {"http": 80, "https": 443}


class EndpointAddress:
    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            host = host if host.isascii() else host.encode("idna").decode()
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError, UnicodeError):
            raise Misconfigured("base_url is not a valid address; correct it in the configuration.") from None
        self.origin = Origin(secure=parts.scheme == "https", host=host, port=port)
        named = f"[{host}]" if ":" in host else host
        self._host = named if port == _PORTS[parts.scheme] else f"{named}:{port}"
        self._target = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        self.shown = f"{parts.scheme}://{self._host}{parts.path}"

    def head(self, method: str, headers: Mapping[str, str]) -> bytes:
        """Returns the head of a request, up to the value of Content-Length."""
        lines = [f"{method} {self._target} HTTP/1.1"]
        if "host" not in {name.lower() for name in headers}:
            lines.append(f"Host: {self._host}")
        lines += (f"{name}: {value}" for name, value in headers.items())
        return "\r\n".join([*lines, "Content-Length: "]).encode()
