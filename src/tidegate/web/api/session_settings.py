"""Conversations as their operator keeps them up: which settings they have, and the configuration taken anew.

Guarantee: the settings of all conversations are the owner's to see; one conversation is changed by its principal or the
owner, and does not exist for anybody else. The list is bounded and paged.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidegate.errors import Conflict, NotFound, Refused
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer

MOST_SETTINGS = 500
"""Of one page."""


class SettingsQuery(msgspec.Struct):
    limit: Annotated[int, Meta(ge=1, le=MOST_SETTINGS)] = 200
    before: Annotated[str, Meta(max_length=500, description="`next` of the page before.")] | None = None


class SessionSetting(msgspec.Struct, frozen=True):
    """What somebody chose for one conversation, where that came from, and until when it holds (null: to its end)."""

    session: str
    key: str
    value: Any
    source: str
    expires: float | None


class SettingsAnswer(msgspec.Struct, frozen=True):
    """The settings that hold now, the latest first."""

    settings: list[SessionSetting]
    next: str | None
    """Give this as `before` for the next page; null at the end."""


class ReloadedAnswer(msgspec.Struct, frozen=True):
    changed: bool
    """False if its prompt and tools were already those of the configuration."""


class SessionSettingsApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        one = "/api/sessions/{id}"
        return [
            Endpoint(
                method="GET", path="/api/settings", handler=self.settings, who="configure", query=SettingsQuery,
                summary="List the settings of all conversations", answers={200: SettingsAnswer},
            ),
            Endpoint(
                method="DELETE", path=f"{one}/settings/{{key}}", handler=self.clear,
                summary="Clear a setting of a conversation", answers={204: None}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=f"{one}/reload", handler=self.reload,
                summary="Take the agent's prompt and tools as they are configured now",
                answers={200: ReloadedAnswer}, refusals=(404, 409),
            ),
        ]  # fmt: skip

    async def settings(self, ask: Ask) -> HttpResponse:
        query: SettingsQuery = ask.query
        before = None if query.before is None else _place(query.before)
        rows = await self._service.settings_of_all(limit=query.limit + 1, before=before)
        held = rows[: query.limit]
        last = held[-1] if len(rows) > query.limit else None
        return json_answer(
            SettingsAnswer(
                [SessionSetting(row.session, row.key, row.value, row.source, row.expires) for row in held],
                None if last is None else f"{last.at!r}:{last.session}:{last.key}",
            )
        )

    async def clear(self, ask: Ask) -> HttpResponse:
        session, key = ask.path["id"], ask.path["key"]
        if not await self._service.operations.clear_setting(session, ask.caller.principal, key):
            raise NotFound(f"This conversation has no setting {key[:100]!r}.", code="setting_not_found")
        return HttpResponse(204, [], b"")

    async def reload(self, ask: Ask) -> HttpResponse:
        row = await self._service.row(ask.path["id"], ask.caller.principal)
        if self._service.agent(row.agent) is None:
            raise Conflict(f"The agent {row.agent!r} is not configured any more.", code="agent_not_configured")
        return json_answer(ReloadedAnswer(await self._service.operations.reload(row.id, ask.caller.principal)))


def _place(text: str) -> tuple[float, str, str]:
    try:
        at, session, key = text.split(":", 2)
        return float(at), session, key
    except ValueError:
        raise Refused("before must be the `next` of the page before.", param="before") from None
