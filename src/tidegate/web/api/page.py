"""The chat page and its files, which load without a key."""

from tidegate.web.app.auth import Credentials
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse
from tidegate.web.app.page_files import PageFiles


class PageApi:
    def __init__(self, credentials: Credentials, files: PageFiles) -> None:
        self._credentials = credentials
        self._files = files

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET", path="/", handler=self.page, access="anyone", summary="The chat page",
                responses={200: "text/html"}, refusals=(403, 404),
            ),
            Endpoint(
                method="GET", path="/static/{name:path}", handler=self.page, access="anyone",
                summary="Files of the chat page", responses={200: "application/octet-stream"}, refusals=(403, 404),
            ),
        ]  # fmt: skip

    async def page(self, request: Request) -> HttpResponse:
        self._credentials.check_host(request.headers)
        name = request.path.get("name", "index.html")
        known, encodings = request.headers.get(b"if-none-match"), request.headers.get(b"accept-encoding")
        return await self._files.get(name, known, encodings)
