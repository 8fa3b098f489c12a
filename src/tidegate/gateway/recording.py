"""Recording and replay of model traffic: `tidegate up --record FILE` and `tidegate up --replay FILE`.

An unusable file is reported before anything is opened or taken over. The recorder and the replayer are imported only
when needed. The scope passed to `open` owns them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.config import Config, is_reference
from tidegate.errors import Misconfigured
from tidegate.gateway.preflight.preflight import NO_KEY, Ready
from tidegate.http_client import HttpClient, Transport
from tidegate.lifetimes import Holding, Ledger, Scope
from tidegate.models import RetryPolicy
from tidegate.security import Redactor
from tidegate.status_report import RecorderStatus, ReplayerStatus

if TYPE_CHECKING:
    from tidegate.models.recording import TransportRecorder, TransportReplayer

PROCESS = "process"


class Recording:
    """This gateway's recording or replay. Most gateways have neither."""

    def __init__(self, record: Path | None = None, replay: Path | None = None) -> None:
        if record is not None and replay is not None:
            raise Misconfigured("A gateway either records or replays: use --record or --replay, not both.")
        self._record = record
        self._replay = replay
        self._replayer: TransportReplayer | None = None
        self._recorder: TransportRecorder | None = None

    @property
    def replays(self) -> bool:
        return self._replay is not None

    def prepare(self, ready: Ready) -> None:
        """Checks that the file can be used. Blocks the calling thread."""
        if self._record is not None:
            from tidegate.models.recording import check

            check(self._record)
            _keep_apart(self._record, ready.config)
        if self._replay is not None:
            from tidegate.models.recording import TransportReplayer

            known = (secret for secret in ready.secrets.values() if secret is not NO_KEY)
            self._replayer = TransportReplayer(self._replay, Redactor(known))
            self._replayer.open()

    async def open(
        self, scope: Scope, clients: HttpClient, config: Config, redactor: Redactor, ledger: Ledger
    ) -> Transport:
        """Opens the recorder or replayer, if there is one. Returns the transport to use for models."""
        if self._replayer is not None:
            return self._replayer
        if self._record is None:
            return clients
        from tidegate.models.recording import TransportRecorder

        recorder = await scope.enter(
            TransportRecorder(clients, self._record, redactor, referred=set(_referred(config)))
        )
        self._recorder = recorder
        ledger.view("recording", lambda: ((PROCESS, Holding(1, recorder.writer.pending, fds=1)),))
        return recorder

    @property
    def patience(self) -> RetryPolicy | None:
        """The retry policy for a replay; None means the models' own policies."""
        return None if self._replayer is None else self._replayer.retry_policy

    def status(self) -> RecorderStatus | ReplayerStatus | None:
        recording = self._recorder or self._replayer
        return None if recording is None else recording.status()

    def lines(self, config: Config) -> Iterator[str]:
        """Yields lines for the start message."""
        if self._record is not None:
            yield f"Recording model traffic, which contains all conversations but no keys, to {self._record}."
        elif self._replay is not None:
            yield f"Replaying {self._replay}: no model is called, and only recorded requests are answered."
        else:
            return
        if all(model.api == "demo" for model in config.models.values()):
            yield "Only the demo model is configured, which has no traffic: nothing will be recorded or replayed."


def _keep_apart(file: Path, config: Config) -> None:
    """Refuses to record into an agent's folder, since a recording contains every user's conversations."""
    for name in config.agents:
        folder = config.project(name)
        if folder is not None and file.resolve().is_relative_to(folder.resolve()):
            raise Misconfigured(
                f"{file} is in the folder of agent {name!r}, which could read other users' conversations there: "
                "record elsewhere."
            )


def _referred(config: Config) -> Iterator[str]:
    """Yields the names of headers whose values are secrets."""
    for model in config.models.values():
        yield from (name.lower() for name, value in model.headers.items() if is_reference(value))
