"""The tables `[server]`, `[store]` and `[log]`: the gateway's address, storage and log."""

import ipaddress
from typing import Annotated, Literal

from tidegate.config.value_types import FilePath, Flag, Integer, OneOf, Origins, Text
from tidegate.values import Frozen


class ServerSettings(Frozen, frozen=True):
    """The address that the gateway listens on."""

    host: Annotated[
        str, Text(needed=True, at_most=253), "Address to listen on. Addresses other than loopback require TLS."
    ] = "127.0.0.1"
    port: Annotated[int, Integer(0, 65535), "Port to listen on; 0 is any free port."] = 8420
    tls_cert: Annotated[str | None, FilePath(), "Certificate chain (PEM), relative to the home folder."] = None
    tls_key: Annotated[str | None, FilePath(), "The certificate's private key (PEM), relative to the home folder."] = (
        None
    )
    insecure: Annotated[
        bool, Flag(), "Listen beyond loopback without TLS, for use behind a proxy that provides TLS."
    ] = False
    one_core: Annotated[
        bool,
        Flag(),
        "Run all of the gateway's threads on one CPU core, which makes turns cheaper; false allows all cores.",
    ] = True
    origins: Annotated[
        tuple[str, ...], Origins(), "Origins of other web pages that may call the gateway from a browser."
    ] = ()


class StoreSettings(Frozen, frozen=True):
    """Storage of conversations on disk."""

    durability: Annotated[
        Literal["process", "power"],
        OneOf("process", "power"),
        "What accepted messages survive: a crash of the process, or a power failure as well (slower).",
    ] = "process"


class LogSettings(Frozen, frozen=True):
    """The log on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        OneOf("debug", "info", "warning", "error"),
        "Lowest severity to log.",
    ] = "info"
    format: Annotated[
        Literal["text", "json"], OneOf("text", "json"), "Text for people, or one JSON object per line."
    ] = "text"


def is_loopback(host: str) -> bool:
    """True if a server that listens on `host` can be reached only from this machine. Names other than `localhost` are
    assumed to be reachable from elsewhere, since their address can change."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
