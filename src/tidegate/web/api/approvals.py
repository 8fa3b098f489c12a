"""`/api/approvals`: what agents ask, and the answers.

Guarantee: everybody sees and answers his own; anybody else's does not exist for him, whatever his role. An answer
counts once, from whichever client it comes first, and the same again changes nothing. Lists are bounded, and say when
there is more.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.sessions import Sessions
from tidegate.store import approvals
from tidegate.turns import QuestionView
from tidegate.web.app.endpoint import Ask, Endpoint
from tidegate.web.app.error_responses import HttpResponse, json_answer

MOST_LISTED = 500


class ApprovalsQuery(msgspec.Struct):
    session: Annotated[str, Meta(min_length=1, max_length=200, description="Of one conversation only.")] | None = None
    closed: Annotated[bool, Meta(description="With `session`: what was answered before too, the latest first.")] = False
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 200


class ApprovalsAnswer(msgspec.Struct, frozen=True):
    """What waits for your answer, the oldest first."""

    approvals: list[QuestionView]
    more: bool
    """Whether there are others, which `limit` left out."""


class AnswerIn(msgspec.Struct):
    """`approved` or `denied` for an approval, with a reason in `text` if you like; `answered` for a question, with its
    answer in `text`: one of the choices or its number where there are any."""

    decision: Literal["approved", "denied", "answered"]
    text: Annotated[str, Meta(max_length=approvals.ANSWER_CHARACTERS)] = ""


class ApprovalsApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        one = "/api/approvals/{id}"
        return [
            Endpoint(
                method="GET", path="/api/approvals", handler=self.listing, query=ApprovalsQuery,
                summary="List the approvals and questions that wait for your answer", answers={200: ApprovalsAnswer},
                refusals=(404,),
            ),
            Endpoint(
                method="GET", path=one, handler=self.show, summary="Show an approval or a question",
                answers={200: QuestionView}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=one, handler=self.answer, summary="Approve, deny or answer", body=AnswerIn,
                answers={200: QuestionView}, refusals=(404, 409),
            ),
        ]  # fmt: skip

    async def listing(self, ask: Ask) -> HttpResponse:
        query: ApprovalsQuery = ask.query
        principal, questions = ask.caller.principal, self._service.questions
        if query.session is not None:
            await self._service.row(query.session, principal)
        elif query.closed:
            raise Refused("Give the session whose closed ones you want.", param="session")
        if query.closed and query.session is not None:
            found = await questions.of_session(query.session, principal, limit=query.limit + 1)
        else:
            found = await questions.open_for(principal, session=query.session, limit=query.limit + 1)
        return json_answer(ApprovalsAnswer(found[: query.limit], len(found) > query.limit))

    async def show(self, ask: Ask) -> HttpResponse:
        return json_answer(await self._service.questions.get(ask.path["id"], ask.caller.principal))

    async def answer(self, ask: Ask) -> HttpResponse:
        said: AnswerIn = ask.body
        answered = await self._service.questions.answer(ask.path["id"], ask.caller.principal, said.decision, said.text)
        return json_answer(answered)
