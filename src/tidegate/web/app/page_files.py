"""The chat page's static files.

Only files of the folder that is part of the program are served, each with its content type, an ETag and security
headers that exclude foreign scripts, frames and origins. All other names get 404, in any spelling or encoding. Files
are read in a thread and kept in a bounded cache.
"""

import hashlib
from pathlib import Path

import anyio.to_thread

from tidegate.errors import NotFound
from tidegate.lifetimes import BoundedCache, CacheStats
from tidegate.web.app.http_response import HttpResponse

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".ico": b"image/x-icon",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
FOLDER = Path(__file__).parents[1] / "static"
KEPT_FILES = 64
KEPT_BYTES = 2 * 1024 * 1024
KEPT_SECONDS = 2.0
"""The maximum number of seconds until an edited file is served. Requests before that do not access the disk."""

SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        b"form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


class PageFiles:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: BoundedCache[str, HttpResponse] = BoundedCache(
            "pages",
            cap=KEPT_FILES,
            ttl=KEPT_SECONDS,
            max_bytes=KEPT_BYTES,
            weigh=lambda response: len(response.body),
        )

    async def get(self, name: str, known: bytes | None) -> HttpResponse:
        """Returns the file, or 304 for a client whose ETag is current."""
        response = await self._kept.get_or_make(name, lambda: anyio.to_thread.run_sync(self._read, name))
        tag = next(value for key, value in response.headers if key == b"etag")
        if known is not None and tag in (piece.strip() for piece in known.split(b",")):
            return HttpResponse(304, [(b"etag", tag), (b"cache-control", b"no-cache")], b"")
        return response

    def stats(self) -> CacheStats:
        return self._kept.stats()

    def _read(self, name: str) -> HttpResponse:
        """Reads a file by name. Names are compared with the files of the folder and never joined to a path."""
        for path in self._folder.rglob("*"):
            if path.relative_to(self._folder).as_posix() == name and path.is_file() and not path.is_symlink():
                kind = _TYPES.get(path.suffix)
                if kind is not None:
                    return _response(path.read_bytes(), kind)
        raise NotFound("There is no such page.")


def _response(body: bytes, kind: bytes) -> HttpResponse:
    tag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"etag", tag),
        (b"cache-control", b"no-cache"),
        *SECURITY_HEADERS,
    ]
    return HttpResponse(200, headers, body)
