"""The command line's client of the running gateway: its HTTP API, with the home folder's own key.

Guarantee: every call has a deadline; every failure is one sentence; the key leaves this process only in the header of a
request to the address that the holder of the home's lock wrote down. Blocking on purpose: a command does one thing.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tidegate.errors import Conflict, Misconfigured, NotFound, TidegateError
from tidegate.gateway import hint, holder_of

KEY_NAME = "api-key"
_CALL_SECONDS = 30.0
_SILENCE_SECONDS = 60.0  # a stream is never silent for longer than its keep-alive of 15 s, while its sender lives
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NotRunning(TidegateError):
    def __init__(self, home: Path) -> None:
        super().__init__(f"No gateway runs for {home}: start one with {hint(home, 'up')}.")


class Api:
    """One gateway as its owner sees it."""

    def __init__(self, home: Path) -> None:
        holder = holder_of(home)
        if holder is None:
            raise NotRunning(home)
        if not holder.address:
            raise TidegateError(f"The gateway of {home} (pid {holder.pid}) is still starting: try again in a moment.")
        self.address = holder.address
        self._parts = urlsplit(holder.address)
        self._home = home
        self._key = _key(home)

    def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any:
        """One request and its JSON answer (None for an empty one)."""
        connection = self._connect(_CALL_SECONDS)
        try:
            response = self._send(connection, method, _target(path, query), body, {})
            data = self._read(response)
        finally:
            connection.close()
        if response.status >= 400:
            raise _refusal(response.status, data)
        return json.loads(data) if data else None

    def lines(self, path: str, *, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """A streamed answer, line by line."""
        connection = self._connect(_SILENCE_SECONDS)
        try:
            response = self._send(connection, "GET", path, None, dict(headers or {}))
            if response.status >= 400:
                raise _refusal(response.status, self._read(response))
            while line := self._line(response):
                yield line
        finally:
            connection.close()

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        host = self._parts.hostname or "127.0.0.1"
        host = _ANYWHERE.get(host, host)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, self._parts.port, timeout=seconds, context=self._tls())
        return http.client.HTTPConnection(host, self._parts.port, timeout=seconds)

    def _tls(self) -> ssl.SSLContext:
        """Trust the very certificate that the configuration names: it is read from our own home folder, so the name
        in it, which is for the outside, need not be checked."""
        from tidegate.gateway import settings

        context = ssl.create_default_context()
        config = settings(self._home)
        if config.server.tls_cert is not None:
            context.load_verify_locations(config.path(config.server.tls_cert))
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.check_hostname = False
        return context

    def _send(
        self, connection: http.client.HTTPConnection, method: str, target: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._key}", **headers}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, target, body=data, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(error) from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unanswered(error) from error

    def _line(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.readline()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unanswered(error) from error

    def _unanswered(self, error: Exception) -> "Unanswered":
        why = "no answer in time" if isinstance(error, TimeoutError | socket.timeout) else str(error)
        return Unanswered(
            f"The gateway at {self.address} does not answer ({why}): look at {hint(self._home, 'doctor')}."
        )


class Unanswered(TidegateError):
    """The connection broke or stayed silent; what was accepted before goes on."""


def segment(text: str) -> str:
    """A piece of a path, whatever it contains."""
    return quote(text, safe="")


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _key(home: Path) -> str:
    path = home / KEY_NAME
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise Misconfigured(
            f"The key file {path} is missing: restart the gateway, which makes a new one, with "
            f"{hint(home, 'up --replace')}."
        ) from None
    except OSError as error:
        raise Misconfigured(f"The key file {path} cannot be read ({error.strerror}): correct its rights.") from None


def _refusal(status: int, data: bytes) -> TidegateError:
    try:
        message = str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The gateway answered with status {status}."
    known = {404: NotFound, 409: Conflict}.get(status, TidegateError)
    return known(message)
