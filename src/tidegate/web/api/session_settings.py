"""Conversations' settings, and reloading their configuration.

The owner sees all conversations' settings. Only a conversation's principal and the owner can change its settings;
anyone else gets 404. The list is bounded and paged.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidegate.errors import Conflict, NotFound, Refused
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response

MOST_SETTINGS = 500
"""Maximum number of settings on a page."""


class SettingsQuery(msgspec.Struct):
    limit: Annotated[int, Meta(ge=1, le=MOST_SETTINGS)] = 200
    before: Annotated[str, Meta(max_length=500, description="`next` of the previous page.")] | None = None


class SessionSetting(msgspec.Struct, frozen=True):
    """A setting of one conversation, with its source and its expiry (null: until the conversation ends)."""

    session: str
    key: str
    value: Any
    source: str
    expires: float | None


class SettingsAnswer(msgspec.Struct, frozen=True):
    """The current settings, latest first."""

    settings: list[SessionSetting]
    next: str | None
    """Pass this as `before` for the next page; null on the last page."""


class ReloadedAnswer(msgspec.Struct, frozen=True):
    changed: bool
    """False if the prompt and tools already matched the configuration."""


class SessionSettingsApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        one = "/api/sessions/{id}"
        return [
            Endpoint(
                method="GET", path="/api/settings", handler=self.settings, access="configure", query=SettingsQuery,
                summary="List the settings of all conversations", responses={200: SettingsAnswer},
            ),
            Endpoint(
                method="DELETE", path=f"{one}/settings/{{key}}", handler=self.clear,
                summary="Clear a setting of a conversation", responses={204: None}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/reload", handler=self.reload,
                summary="Reload the agent's prompt and tools from the configuration",
                responses={200: ReloadedAnswer}, refusals=(404, 409),
            ),
        ]  # fmt: skip

    async def settings(self, request: Request) -> HttpResponse:
        query: SettingsQuery = request.query
        before = None if query.before is None else _place(query.before)
        rows = await self._service.settings_of_all(limit=query.limit + 1, before=before)
        shown = rows[: query.limit]
        last = shown[-1] if len(rows) > query.limit else None
        return json_response(
            SettingsAnswer(
                [SessionSetting(row.session, row.key, row.value, row.source, row.expires) for row in shown],
                None if last is None else f"{last.at!r}:{last.session}:{last.key}",
            )
        )

    async def clear(self, request: Request) -> HttpResponse:
        session, key = request.path["id"], request.path["key"]
        if not await self._service.operations.clear_setting(session, request.caller.principal, key):
            raise NotFound(f"This conversation has no setting {key[:100]!r}.", code="setting_not_found")
        return HttpResponse(204, [], b"")

    async def reload(self, request: Request) -> HttpResponse:
        row = await self._service.row(request.path["id"], request.caller.principal)
        if self._service.agent(row.agent) is None:
            raise Conflict(f"The agent {row.agent!r} is no longer configured.", code="agent_not_configured")
        reloaded = await self._service.operations.reload(row.id, request.caller.principal)
        return json_response(ReloadedAnswer(reloaded))


def _place(text: str) -> tuple[float, str, str]:
    try:
        at, session, key = text.split(":", 2)
        return float(at), session, key
    except ValueError:
        raise Refused("before must be the `next` of the previous page.", param="before") from None
