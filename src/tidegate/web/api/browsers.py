"""Signed-in browsers over HTTP: listed, and signed out one by one or all at once.

Users see and sign out their own browsers; the owner everybody's. A browser that was signed out is refused from that
moment, and its event streams end.
"""

import msgspec

from tidegate.web.app.auth import BrowserView, Credentials
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer


class BrowsersAnswer(msgspec.Struct, frozen=True):
    browsers: list[BrowserView]


class Everywhere(msgspec.Struct, frozen=True):
    """Whose browsers are signed out: your own, or, for the owner, everyone's."""

    everyone: bool = False


class SignedOut(msgspec.Struct, frozen=True):
    signed_out: int


class BrowsersApi:
    def __init__(self, keyring: Credentials) -> None:
        self._keyring = keyring

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/browsers", handler=self.listing, summary="List signed-in browsers",
                answers={200: BrowsersAnswer},
            ),
            Endpoint(
                method="DELETE", path="/api/browsers", handler=self.sign_out_everywhere, query=Everywhere,
                summary="Sign out everywhere", answers={200: SignedOut},
            ),
            Endpoint(
                method="DELETE", path="/api/browsers/{id}", handler=self.sign_out, summary="Sign out one browser",
                answers={204: None}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def listing(self, ask: Ask) -> HttpResponse:
        return json_answer(BrowsersAnswer(await self._keyring.browsers(ask.caller)))

    async def sign_out(self, ask: Ask) -> HttpResponse:
        await self._keyring.sign_out_browser(ask.caller, ask.path["id"])
        return HttpResponse(204, [], b"")

    async def sign_out_everywhere(self, ask: Ask) -> HttpResponse:
        if ask.query.everyone:
            ask.caller.principal.require("configure")
        count = await self._keyring.sign_out_everywhere(ask.caller, everyone=ask.query.everyone)
        return json_answer(SignedOut(count))
