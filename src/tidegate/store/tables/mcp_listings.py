"""What each MCP server offered last, so that conversations can begin while a server is down.

Each listing is stored with a signature of the server's settings, and no longer applies when the settings change.
"""

from tidegate.store.interface import Db
from tidegate.store.rows import compress, decompress


def put(db: Db, server: str, signature: bytes, body: bytes, at: float) -> None:
    packed_body, packed = compress(body)
    db.execute(
        "INSERT INTO mcp_listings(server, signature, body, packed, at) VALUES(?, ?, ?, ?, ?)"
        " ON CONFLICT(server) DO UPDATE SET signature = excluded.signature, body = excluded.body,"
        " packed = excluded.packed, at = excluded.at",
        (server, signature, packed_body, packed, at),
    )


def all_of(db: Db) -> dict[str, tuple[bytes, bytes]]:
    """Returns the signature and the listing of every server."""
    rows = db.execute("SELECT server, signature, body, packed FROM mcp_listings").fetchall()
    return {server: (signature, decompress(body, packed)) for server, signature, body, packed in rows}


def remove(db: Db, server: str) -> None:
    db.execute("DELETE FROM mcp_listings WHERE server = ?", (server,))
