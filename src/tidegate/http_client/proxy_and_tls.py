"""The proxies and trusted certificate authorities for connections to other hosts, the same for every client.

`HttpClient` follows these rules. A library's own client must be created with them:

    aiohttp, discord.py    session.request(…, proxy=network.proxy_for(url), ssl=await network.tls_context())
    slack-sdk, matrix-nio  Client(…, proxy=network.proxy_for(url), ssl=await network.tls_context())
    httpx2, mcp            httpx2.AsyncClient(proxy=network.proxy_for(url), verify=await network.tls_context(),
                                              trust_env=False)

A client whose addresses come from an agent also needs an `AddressGuard`: as the `socket_factory` of an aiohttp
connector or, in other libraries and through a proxy, with `await guard.check(host, port)` before each request.

The environment's proxy variables are read once, when a `Network` is made. A proxy is never used for this machine's own
addresses, so a local model needs no exception. One TLS context is shared by all clients that trust the same
authorities. A `Network` opens no connection.
"""

import ipaddress
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from anyio import Lock, to_thread

from tidegate.config import NetworkSettings, is_loopback, is_reference
from tidegate.errors import Misconfigured
from tidegate.security import Secret

PROXY_PORTS = {"http": 80, "https": 443}
_PORTS = {"http": 80, "https": 443}
_HTTP = ("http_proxy", "HTTP_PROXY")
_HTTPS = ("https_proxy", "HTTPS_PROXY")
_ALL = ("all_proxy", "ALL_PROXY")
_NONE = ("no_proxy", "NO_PROXY")


class Network:
    """The rules of one process. `environment` contains the proxy variables, and `resolve` returns the secret to which a
    reference refers. Relative paths of certificates start at the `home` folder."""

    def __init__(
        self,
        settings: NetworkSettings | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        resolve: Callable[[str], Secret] | None = None,
        home: Path | None = None,
    ) -> None:
        self._settings = settings or NetworkSettings()
        self._resolve = resolve
        self._home = home or Path()
        environment = environment or {}
        self._exceptions = _exceptions(_first(environment, _NONE)[1])
        self._environment = {
            "http": _of_environment(environment, (*_HTTP, *_ALL)),
            "https": _of_environment(environment, (*_HTTPS, *_ALL)),
        }
        self._proxies: dict[str, Secret] = {}  # lint: allow one for each reference in the settings
        self._contexts: dict[str, ssl.SSLContext] = {}  # lint: allow one for each ca_file in the settings
        self._loading = Lock()

    def proxy_for(self, url: str, setting: str = "") -> str | None:
        """Returns the address of the proxy for a URL, with its credentials, or None. `setting` is the `proxy` of a
        model or of the web tools."""
        proxy = self.secret_proxy_for(url, setting)
        return None if proxy is None else proxy.reveal()

    def secret_proxy_for(self, url: str, setting: str = "", *, exceptions: bool = False) -> Secret | None:
        """Returns the same as `proxy_for`, as a secret. If `exceptions` is true, NO_PROXY applies even to a proxy that
        `setting` names."""
        chosen = setting or self._settings.proxy
        if chosen == "none":
            return None
        if (exceptions or setting in ("", "environment")) and self._is_exception(url):
            return None
        if chosen == "environment":
            return self._environment.get(urlsplit(url).scheme)
        return self._named(chosen, "proxy" if setting else "[network] proxy")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The passwords of the proxies that are known so far, to be removed from the log."""
        found = [each for each in (*self._environment.values(), *self._proxies.values()) if each is not None]
        passwords = (urlsplit(each.reveal()).password for each in found)
        return tuple(Secret(form) for password in passwords if password for form in {password, unquote(password)})

    async def tls_context(self, ca_file: str = "") -> ssl.SSLContext:
        """Returns the context that trusts the system's authorities (or those of `SSL_CERT_FILE`), those of `[network]
        ca_file`, and those in `ca_file`. Raises Misconfigured if a file cannot be used."""
        if (context := self._contexts.get(ca_file)) is None:
            async with self._loading:
                if (context := self._contexts.get(ca_file)) is None:
                    context = self._contexts[ca_file] = await to_thread.run_sync(self._make_context, ca_file)
        return context

    def check(self, where: str, proxy: str = "", ca_file: str = "") -> None:
        """Checks the settings of a table before the gateway starts. Blocks. Raises Misconfigured."""
        if proxy not in ("", "none", "environment"):
            self._named(proxy, f"{where} proxy")
        if ca_file:
            _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), self._home, ca_file, f"{where} ca_file")

    def _named(self, setting: str, where: str) -> Secret:
        if (known := self._proxies.get(setting)) is not None:
            return known
        if not is_reference(setting):
            secret = Secret(setting)
        elif self._resolve is None:
            raise Misconfigured(f"{where} = {setting!r} is a reference, which cannot be resolved here.")
        else:
            secret = self._resolve(setting)
        if not is_proxy(secret.reveal()):
            raise Misconfigured(f"{where} must be an address like http://proxy.example.org:3128; correct it.")
        self._proxies[setting] = secret
        return secret

    def _is_exception(self, url: str) -> bool:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        if is_loopback(host):
            return True
        port = parts.port or _PORTS.get(parts.scheme)
        return any(matches(host, port) for matches in self._exceptions)

    def _make_context(self, ca_file: str) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        for file, where in ((self._settings.ca_file or "", "[network] ca_file"), (ca_file, "ca_file")):
            if file:
                _trust(context, self._home, file, where)
        return context


def is_proxy(text: str) -> bool:
    """True if this is the address of an HTTP proxy."""
    try:
        parts = urlsplit(text)
        return parts.scheme in PROXY_PORTS and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return False


def _trust(context: ssl.SSLContext, home: Path, file: str, where: str) -> None:
    try:
        context.load_verify_locations(cafile=str(home / Path(file).expanduser()))
    except (OSError, RuntimeError) as error:
        why = "it contains no certificate" if isinstance(error, ssl.SSLError) else getattr(error, "strerror", "")
        raise Misconfigured(f"{where}: {file} cannot be used ({why or 'invalid path'}); it must be PEM.") from None


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environment[name].strip()) for name in names if environment.get(name, "").strip()), ("", ""))


def _of_environment(environment: Mapping[str, str], names: tuple[str, ...]) -> Secret | None:
    name, text = _first(environment, names)
    if not text:
        return None
    text = text if "://" in text else f"http://{text}"
    if not is_proxy(text):
        raise Misconfigured(
            f"The environment variable {name} is not the address of an HTTP proxy; correct it, or set proxy to "
            '"none" in [network].'
        )
    return Secret(text)


def _exceptions(text: str) -> tuple[Callable[[str, int | None], bool], ...]:
    return tuple(_exception(entry) for entry in text.replace(",", " ").split())


def _exception(entry: str) -> Callable[[str, int | None], bool]:
    """Returns the function that tests a host and port against an entry of NO_PROXY: `*`, a host (including its
    subdomains), an address or a network, each with an optional port."""
    if entry == "*":
        return lambda _host, _port: True
    host, port = entry.lower(), None
    if entry.startswith("[") or entry.count(":") == 1:
        name, _, number = entry.rpartition(":")
        if number.isdecimal():
            host, port = name.lower(), int(number)
    host = host.strip("[]")
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        name = host.removeprefix("*").strip(".")
        return lambda other, at: port in (None, at) and (other == name or other.endswith(f".{name}"))

    def within(other: str, at: int | None) -> bool:
        try:
            return port in (None, at) and ipaddress.ip_address(other) in network
        except ValueError:
            return False

    return within
