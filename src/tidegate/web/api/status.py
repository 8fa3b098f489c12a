"""Endpoints for the gateway's state: liveness, readiness, metrics and status.

Without a key, clients can only check that the process is running.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from anyio import to_thread

from tidegate.status_report import Readiness, SessionsStatus, StatusReport
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.health import Health
from tidegate.web.app.http_response import HttpResponse, json_response


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


class StatusApi:
    def __init__(
        self,
        health: Health,
        load_metrics: Callable[[], Callable[[], HttpResponse]],
        status: Callable[[], Awaitable[StatusReport | SessionsStatus]],
    ) -> None:
        self._health = health
        self._load_metrics = load_metrics
        self._scrape: Callable[[], HttpResponse] | None = None
        self._status = status

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/healthz", handler=self.alive, access="anyone",
                summary="Check that the process is running", responses={200: Alive},
            ),
            Endpoint(
                method="GET", path="/readyz", handler=self.ready,
                summary="Check that the gateway works end to end: loop, store, timers",
                responses={200: Readiness, 503: Readiness},
            ),
            Endpoint(
                method="GET", path="/metrics", handler=self.metrics, access="see_usage",
                summary="Metrics for Prometheus", responses={200: "text/plain"},
            ),
            Endpoint(
                method="GET", path="/api/status", handler=self.status, summary="Show the state of the gateway",
                access="see_usage", responses={200: dict[str, Any]},
            ),
        ]  # fmt: skip

    async def alive(self, request: Request) -> HttpResponse:
        return json_response(Alive())

    async def ready(self, request: Request) -> HttpResponse:
        readiness = await self._health.check()
        return json_response(readiness, status=200 if readiness.ready else 503)

    async def metrics(self, request: Request) -> HttpResponse:
        # The library is imported at the first scrape, in a thread. The metrics belong to the event loop and are read
        # there.
        if self._scrape is None:
            self._scrape = await to_thread.run_sync(self._load_metrics)
        return self._scrape()

    async def status(self, request: Request) -> HttpResponse:
        return json_response(await self._status())
