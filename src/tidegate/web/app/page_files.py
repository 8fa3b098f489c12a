"""The chat page's static files.

Only files in the folder that is part of the program are served, each with its content type, an ETag and security
headers that exclude scripts, frames and requests from other origins. All other names get 404, in any spelling or
encoding. Files are read and compressed in a thread. They are cached, within limits, in the form requested; since
browsers request gzip, the cache usually contains only compressed text.
"""

import gzip
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
COMPRESSED = {".html", ".js", ".mjs", ".css", ".svg", ".json", ".txt"}
COMPRESSED_FROM = 512
"""Size, in bytes, from which files are compressed. Smaller ones fit into one packet anyway."""
KEPT_FILES = 64
KEPT_BYTES = 2 * 1024 * 1024
KEPT_SECONDS = 2.0
"""Maximum number of seconds until an edited file is served. Until then, requests do not access the disk."""

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
        self._kept: BoundedCache[tuple[str, bool], HttpResponse] = BoundedCache(
            "pages",
            cap=KEPT_FILES,
            ttl=KEPT_SECONDS,
            max_bytes=KEPT_BYTES,
            weigh=lambda response: len(response.body),
        )

    async def get(self, name: str, known: bytes | None, encodings: bytes | None = None) -> HttpResponse:
        """Returns the file, compressed if the client accepts gzip, or 304 for a client whose ETag is current."""
        compress = _accepts_gzip(encodings or b"")
        response = await self._kept.get_or_make(
            (name, compress), lambda: anyio.to_thread.run_sync(self._read, name, compress)
        )
        tag = next(value for key, value in response.headers if key == b"etag")
        if known is not None and tag in (piece.strip() for piece in known.split(b",")):
            kept = [(key, value) for key, value in response.headers if key in (b"etag", b"cache-control", b"vary")]
            return HttpResponse(304, kept, b"")
        return response

    def stats(self) -> CacheStats:
        return self._kept.stats()

    def _read(self, name: str, compress: bool) -> HttpResponse:
        """Reads a file by name. Names are compared with the files in the folder and never joined to a path."""
        for path in self._folder.rglob("*"):
            if path.relative_to(self._folder).as_posix() == name and path.is_file() and not path.is_symlink():
                kind = _TYPES.get(path.suffix)
                if kind is not None:
                    return _response(path.read_bytes(), kind, compress and path.suffix in COMPRESSED)
        raise NotFound("There is no such page.")


def _accepts_gzip(encodings: bytes) -> bool:
    codings = [piece.replace(b" ", b"").lower() for piece in encodings.split(b",")]
    return b"gzip" in codings or any(coding.startswith(b"gzip;q=") and coding[7:].strip(b"0.") for coding in codings)


def _response(body: bytes, kind: bytes, compress: bool) -> HttpResponse:
    tag = hashlib.sha256(body).hexdigest()[:32].encode()
    encoding = []
    if compress and len(body) >= COMPRESSED_FROM:
        body = gzip.compress(body, mtime=0)
        tag += b"-gzip"
        encoding = [(b"content-encoding", b"gzip")]
    headers = [
        (b"content-type", kind),
        *encoding,
        (b"content-length", str(len(body)).encode()),
        (b"etag", b'"%b"' % tag),
        (b"vary", b"accept-encoding"),
        (b"cache-control", b"no-cache"),
        *SECURITY_HEADERS,
    ]
    return HttpResponse(200, headers, body)
