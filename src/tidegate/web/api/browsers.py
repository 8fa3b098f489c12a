"""`/api/browsers`: the list of signed-in browsers, and signing out one or all of them.

Users can see and sign out only their own browsers; the owner can see and sign out all browsers. A signed-out browser is
refused immediately, and its event streams are closed.
"""

import msgspec

from tidegate.web.app.auth import BrowserView, Credentials
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response


class BrowsersAnswer(msgspec.Struct, frozen=True):
    browsers: list[BrowserView]


class Everywhere(msgspec.Struct, frozen=True):
    """If `everyone` is true, all users are signed out, which only the owner may do. Otherwise, only your own browsers
    are signed out."""

    everyone: bool = False


class SignedOut(msgspec.Struct, frozen=True):
    signed_out: int


class BrowsersApi:
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/api/browsers", handler=self.listing, summary="List signed-in browsers",
                responses={200: BrowsersAnswer},
            ),
            Endpoint(
                method="DELETE", path="/api/browsers", handler=self.sign_out_everywhere, query=Everywhere,
                summary="Sign out everywhere", responses={200: SignedOut},
            ),
            Endpoint(
                method="DELETE", path="/api/browsers/{id}", handler=self.sign_out, summary="Sign out one browser",
                responses={204: None}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def listing(self, request: Request) -> HttpResponse:
        return json_response(BrowsersAnswer(await self._credentials.browsers(request.caller)))

    async def sign_out(self, request: Request) -> HttpResponse:
        await self._credentials.sign_out_browser(request.caller, request.path["id"])
        return HttpResponse(204, [], b"")

    async def sign_out_everywhere(self, request: Request) -> HttpResponse:
        if request.query.everyone:
            request.caller.principal.require("configure")
        count = await self._credentials.sign_out_everywhere(request.caller, everyone=request.query.everyone)
        return json_response(SignedOut(count))
