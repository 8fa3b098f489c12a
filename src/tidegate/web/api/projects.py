"""`/api/projects/files`: project files that are included in prompts, and the owner's approval of their content.

Only the owner may use these endpoints. Content is approved by its digest, so the approval covers exactly the content
that the owner has read.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.errors import Conflict, NotFound
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response


class ProjectFile(msgspec.Struct):
    """A project file. `sha256` covers the first MiB, which is the maximum that a prompt can contain."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    trusted: bool = False


class ProjectFilesAnswer(msgspec.Struct):
    files: list[ProjectFile]


class TrustIn(msgspec.Struct):
    files: Annotated[list[ProjectFile], Meta(min_length=1, max_length=5000)]


class ProjectsApi:
    def __init__(self, service: Sessions) -> None:
        self._provenance = service.provenance

    def endpoints(self) -> list[Endpoint]:
        path = "/api/projects/files"
        return [
            Endpoint(
                method="GET", path=path, handler=self.files, access="configure", responses={200: ProjectFilesAnswer},
                summary="List the files that are included in prompts from folders to which other users could write",
            ),
            Endpoint(
                method="POST", path=path, handler=self.trust, access="configure", body=TrustIn,
                summary="Approve the content of such files", responses={200: ProjectFilesAnswer}, refusals=(404, 409),
            ),
        ]  # fmt: skip

    async def files(self, request: Request) -> HttpResponse:
        return json_response(await self._list_files())

    async def trust(self, request: Request) -> HttpResponse:
        found = {file.path: file.sha256 for file in (await self._list_files()).files}
        for file in request.body.files:
            if file.path not in found:
                raise NotFound("There is no such file in a project folder to which others can write.", code="no_file")
            if found[file.path] != file.sha256:
                raise Conflict("The file has changed; read it again.", code="changed")
        await self._provenance.trust({file.path: bytes.fromhex(file.sha256) for file in request.body.files})
        return json_response(await self._list_files())

    async def _list_files(self) -> ProjectFilesAnswer:
        trusted = (await self._provenance.known()).trusted
        files = sorted((await self._provenance.files()).items())
        return ProjectFilesAnswer(
            [ProjectFile(path, digest.hex(), (path, digest) in trusted) for path, digest in files]
        )
