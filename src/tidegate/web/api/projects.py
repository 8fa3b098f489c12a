"""The files of project folders that prompts take, and what the owner accepts of them, over HTTP.

Guarantee: for the owner alone. A content is accepted by its digest, so that nobody accepts another than they have read.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate.errors import Conflict, NotFound
from tidegate.sessions import Sessions
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer


class ProjectFile(msgspec.Struct):
    """`sha256` is that of the first MiB, which is all that a prompt could take."""

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
                method="GET", path=path, handler=self.files, who="configure", answers={200: ProjectFilesAnswer},
                summary="Files that prompts take from folders in which others than the owner could write",
            ),
            Endpoint(
                method="POST", path=path, handler=self.trust, who="configure", body=TrustIn,
                summary="Accept the content of such files", answers={200: ProjectFilesAnswer}, refusals=(404, 409),
            ),
        ]  # fmt: skip

    async def files(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._found())

    async def trust(self, ask: Ask) -> HttpResponse:
        found = {file.path: file.sha256 for file in (await self._found()).files}
        for file in ask.body.files:
            if file.path not in found:
                raise NotFound("There is no such file in a project folder that others could write in.", code="no_file")
            if found[file.path] != file.sha256:
                raise Conflict("The file has changed meanwhile; read it again.", code="changed")
        await self._provenance.trust({file.path: bytes.fromhex(file.sha256) for file in ask.body.files})
        return json_answer(await self._found())

    async def _found(self) -> ProjectFilesAnswer:
        trusted = (await self._provenance.known()).trusted
        files = sorted((await self._provenance.files()).items())
        return ProjectFilesAnswer(
            [ProjectFile(path, digest.hex(), (path, digest) in trusted) for path, digest in files]
        )
