"""`/api/approvals`: agents' approval requests and questions, and the users' answers; `/api/approval-rules`: the
approvals that are stored.

Users see and answer only their own; requests for another user's get 404, whatever the caller's role. The first answer
from any client counts; repeating it changes nothing. Users see and remove the stored approvals of their own
conversations, the owner everybody's. Lists are bounded and say whether there are more entries.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegate.errors import Refused
from tidegate.sessions import Sessions
from tidegate.store import approvals
from tidegate.turns import QuestionView, RuleView
from tidegate.values import ApprovalScope
from tidegate.web.app.endpoint import Endpoint, Request
from tidegate.web.app.http_response import HttpResponse, json_response

MOST_LISTED = 500


class ApprovalsQuery(msgspec.Struct):
    session: (
        Annotated[str, Meta(min_length=1, max_length=200, description="Only those of this conversation.")] | None
    ) = None
    closed: Annotated[bool, Meta(description="With `session`: include closed ones, latest first.")] = False
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 200


class ApprovalsAnswer(msgspec.Struct, frozen=True):
    """The approvals and questions that are waiting for your answer, oldest first."""

    approvals: list[QuestionView]
    more: bool
    """True if more than `limit` entries are waiting."""


class AnswerIn(msgspec.Struct):
    """Your decision. Use `approved` or `denied` for an approval, with an optional reason in `text`. Use `answered` for
    a question, with the answer in `text`. If the question has choices, the answer must be one of them or its number.
    `scope` is one of the request's `scopes`, which state what each allows: only this call, further calls in this
    conversation, or further calls in all conversations of the same user."""

    decision: Literal["approved", "denied", "answered"]
    text: Annotated[str, Meta(max_length=approvals.ANSWER_CHARACTERS)] = ""
    scope: ApprovalScope = "call"


class RulesQuery(msgspec.Struct):
    principal: (
        Annotated[str, Meta(min_length=1, max_length=200, description="Only those for the user with this name or id.")]
        | None
    ) = None
    session: (
        Annotated[str, Meta(min_length=1, max_length=200, description="Only those limited to this conversation.")]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 200


class RulesAnswer(msgspec.Struct, frozen=True):
    """The stored approvals, latest first."""

    rules: list[RuleView]
    more: bool
    """True if there are more than `limit` entries."""


class ApprovalsApi:
    def __init__(self, service: Sessions) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        one = "/api/approvals/{id}"
        return [
            Endpoint(
                method="GET", path="/api/approvals", handler=self.listing, query=ApprovalsQuery,
                summary="List the approvals and questions that wait for your answer", responses={200: ApprovalsAnswer},
                refusals=(404,),
            ),
            Endpoint(
                method="GET", path=one, handler=self.show, summary="Show an approval or a question",
                responses={200: QuestionView}, refusals=(404,),
            ),
            Endpoint(
                method="POST", path=one, handler=self.answer, summary="Approve, deny or answer", body=AnswerIn,
                responses={200: QuestionView}, refusals=(404, 409),
            ),
            Endpoint(
                method="GET", path="/api/approval-rules", handler=self.rules, query=RulesQuery,
                summary="List stored approvals", responses={200: RulesAnswer},
            ),
            Endpoint(
                method="DELETE", path="/api/approval-rules/{id}", handler=self.remove_rule,
                summary="Remove a stored approval", responses={204: None}, refusals=(404,),
            ),
        ]  # fmt: skip

    async def listing(self, request: Request) -> HttpResponse:
        query: ApprovalsQuery = request.query
        principal, questions = request.caller.principal, self._service.questions
        if query.session is not None:
            await self._service.row(query.session, principal)
        elif query.closed:
            raise Refused("`closed` needs `session`.", param="session")
        if query.closed and query.session is not None:
            found = await questions.of_session(query.session, principal, limit=query.limit + 1)
        else:
            found = await questions.open_for(principal, session=query.session, limit=query.limit + 1)
        return json_response(ApprovalsAnswer(found[: query.limit], len(found) > query.limit))

    async def show(self, request: Request) -> HttpResponse:
        return json_response(await self._service.questions.get(request.path["id"], request.caller.principal))

    async def answer(self, request: Request) -> HttpResponse:
        body: AnswerIn = request.body
        principal = request.caller.principal
        answered = await self._service.questions.answer(
            request.path["id"], principal, body.decision, body.text, body.scope
        )
        return json_response(answered)

    async def rules(self, request: Request) -> HttpResponse:
        query: RulesQuery = request.query
        found = await self._service.questions.stored.listing(
            request.caller.principal, person=query.principal, session=query.session, limit=query.limit + 1
        )
        return json_response(RulesAnswer(found[: query.limit], len(found) > query.limit))

    async def remove_rule(self, request: Request) -> HttpResponse:
        await self._service.questions.stored.remove(request.path["id"], request.caller.principal)
        return HttpResponse(204, [], b"")
