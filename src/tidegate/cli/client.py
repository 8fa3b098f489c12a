"""The CLI's client for the running gateway. The client uses the HTTP API with the key from the home folder.

Every call has a deadline, and every failure is one sentence that says what to do. The key is sent only in a request
header, and only to the address recorded by the process that holds the home folder's lock. The address is looked up for
each request, so a client keeps working after the gateway restarts. Calls block, since a command does one thing at a
time.
"""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tidegate.errors import Conflict, Misconfigured, NotFound, TidegateError
from tidegate.gateway import command_hint, holder_of

KEY_NAME = "api-key"
_CALL_SECONDS = 30.0
_SILENCE_SECONDS = 60.0  # a live stream has a keep-alive every 15 s
_READ_BYTES = 65536
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_ID = re.compile(r"[A-Za-z0-9_:-]{1,100}")
_LIST_COMMANDS = {
    "session_not_found": "sessions list --all",
    "key_not_found": "keys list",
    "browser_not_found": "browsers list",
    "setting_not_found": "sessions settings",
    "question_not_found": "approvals list",
    "rule_not_found": "approvals rules",
    "note_not_found": "memory list",
}


class GatewayUnreachable(TidegateError):
    """The connection was lost or timed out, or the gateway is restarting. Turns that it has accepted will continue."""


class NotRunning(GatewayUnreachable):
    def __init__(self, home: Path) -> None:
        super().__init__(f"No gateway is running for {home}: start one with {command_hint(home, 'up')}.")


class GatewayClient:
    """A client for one gateway's API that acts as the owner."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._find()

    def _find(self) -> None:
        """Looks up the current address and key of the gateway."""
        holder = holder_of(self._home)
        if holder is None:
            raise NotRunning(self._home)
        if not holder.address:
            raise GatewayUnreachable(
                f"The gateway for {self._home} (pid {holder.pid}) is still starting: try again in a moment."
            )
        self.address = holder.address
        self._parts = urlsplit(holder.address)
        self._key = _key(self._home)

    def call(self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any:
        """Sends a request and returns its JSON response, or None if the response is empty."""
        connection = self._connect(_CALL_SECONDS)
        try:
            response = self._send(connection, method, _target(path, query), body, {})
            data = self._read(response)
        finally:
            connection.close()
        if response.status >= 400:
            raise self._refusal(response.status, data)
        return json.loads(data) if data else None

    def lines(self, path: str, *, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """Yields the lines of a streamed response. Raises an error if the stream is cut off."""
        connection = self._connect(_SILENCE_SECONDS)
        try:
            response = self._send(connection, "GET", path, None, dict(headers or {}))
            if response.status >= 400:
                raise self._refusal(response.status, self._read(response))
            rest = b""
            while data := self._read_chunk(response):
                *complete, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in complete)
            if rest:
                yield rest
        finally:
            connection.close()

    def session(self, id: str) -> str:
        """Returns the API path of a conversation. Raises `NotFound` if the id is malformed."""
        if not _ID.fullmatch(id):
            raise self._missing(f"There is no session {id[:100]!r}.", "session_not_found")
        return f"/api/sessions/{id}"

    def setting(self, session: str, key: str) -> str:
        """Returns the API path of a setting. Like the methods below, this raises `NotFound` if an id is malformed."""
        path = self.session(session)
        if not _ID.fullmatch(key):
            raise self._missing(f"This conversation has no setting {key[:100]!r}.", "setting_not_found")
        return f"{path}/settings/{key}"

    def key(self, id: str) -> str:
        if not _ID.fullmatch(id):
            raise self._missing(f"There is no key {id[:100]!r}.", "key_not_found")
        return f"/api/keys/{id}"

    def browser(self, id: str) -> str:
        if not _ID.fullmatch(id):
            raise self._missing(f"There is no signed-in browser {id[:100]!r}.", "browser_not_found")
        return f"/api/browsers/{id}"

    def approval(self, id: str) -> str:
        if not _ID.fullmatch(id):
            raise self._missing(f"There is no question {id[:100]!r}.", "question_not_found")
        return f"/api/approvals/{id}"

    def approval_rule(self, id: str) -> str:
        if not _ID.fullmatch(id):
            raise self._missing(f"There is no stored approval {id[:100]!r}.", "rule_not_found")
        return f"/api/approval-rules/{id}"

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        self._find()
        host = self._parts.hostname or "127.0.0.1"
        host = _ANYWHERE.get(host, host)
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, self._parts.port, timeout=seconds, context=self._tls())
        return http.client.HTTPConnection(host, self._parts.port, timeout=seconds)

    def _tls(self) -> ssl.SSLContext:
        """Trusts only the configured certificate. The host name is not checked, because it is meant for other machines
        and the certificate comes from our own home folder."""
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
            raise self._unreachable(error) from error

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _read_chunk(self, response: http.client.HTTPResponse) -> bytes:
        """Returns the next bytes of a stream, or b"" at its end. (`readline` cannot tell the end from a stream that was
        cut off.)"""
        try:
            return response.read1(_READ_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> "GatewayUnreachable":
        why = "timeout" if isinstance(error, TimeoutError | socket.timeout) else str(error)
        if isinstance(error, http.client.IncompleteRead):
            why = "its response was cut off"
        return GatewayUnreachable(
            f"The gateway at {self.address} is not responding ({why}): run {command_hint(self._home, 'doctor')}."
        )

    def _refusal(self, status: int, data: bytes) -> TidegateError:
        try:
            error = json.loads(data)["error"]
            message, code = str(error["message"]), str(error.get("code"))
        except (ValueError, KeyError, TypeError, AttributeError):
            message, code = (
                f"The gateway responded with status {status}: run {command_hint(self._home, 'doctor')}.",
                "",
            )
        if status == 401:
            return Misconfigured(f"The key in {self._home / KEY_NAME} is not valid: {another_key(self._home)}.")
        if status == 404:
            return self._missing(message, code)
        return Conflict(message) if status == 409 else TidegateError(message)

    def _missing(self, message: str, code: str) -> NotFound:
        where = _LIST_COMMANDS.get(code)
        if where is not None:
            message = f"{message.rstrip('.')}: see {command_hint(self._home, where)}."
        return NotFound(message, code=code)


def another_key(home: Path) -> str:
    """Returns instructions for replacing the CLI's revoked key."""
    restart = command_hint(home, "up --replace")
    return f"remove {home / KEY_NAME} and restart the gateway with {restart}, which creates a new key"


def _target(path: str, query: Mapping[str, Any] | None) -> str:
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def _key(home: Path) -> str:
    path = home / KEY_NAME
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        raise Misconfigured(
            f"The key file {path} is missing: restart the gateway with {command_hint(home, 'up --replace')}, which "
            "creates a new one."
        ) from None
    except OSError as error:
        raise Misconfigured(
            f"The key file {path} cannot be read ({error.strerror}): correct its permissions."
        ) from None
