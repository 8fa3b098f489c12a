"""The error tree. An error's class determines what the code that catches it should do.

    TidegateError
    ├── Refused                   the caller must change the request; has an HTTP status and a code
    │   ├── Unauthenticated       401  send a valid key
    │   ├── NotAllowed            403  the principal lacks the permission
    │   ├── NotFound              404  it does not exist, or the principal may not see it
    │   ├── Conflict              409  the request conflicts with the session's state
    │   ├── TooLarge              413  a named limit was exceeded
    │   ├── IdempotencyMismatch   422  the same idempotency key was used with a different body
    │   └── Busy                  429  try again later (retry_after)
    │       ├── BudgetSpent         429  a budget is used up; it may renew (retry_after) or not
    │       ├── TooManyConnections  503  all connections are in use; try again later (retry_after)
    │       └── Stopping            503  the gateway is stopping; accepted work continues after the next start
    ├── ModelFailed               the model endpoint failed; `kind` says how, `retryable` whether a retry may help
    ├── ToolFailed                report it to the model in one sentence; the turn continues
    │   └── MediaLeftOut            report it to the user as well: media could not be stored
    ├── TurnFailed                the turn cannot continue (step limit, loop, too many resumes); report it to the user
    ├── Misconfigured             the operator must change the configuration
    └── StoreFailed               the store cannot serve the request now
        ├── StoreBusy               too many requests are waiting, or this one took too long; try again in a moment
        ├── StoreFull               the disk is full; reads still work
        ├── DiskFailed              another disk error, named in the message; check the disk
        ├── StoreLost               the database file was removed or replaced while open; restart the gateway
        ├── StoreDamaged            part of the database cannot be decoded; restore a backup
        └── StoreNewer              the database was written by a newer version and is left untouched

    HookPostponed                 a slow end hook logged a problem; run it again later
    Superseded                    this attempt no longer holds its turn; stop, and write nothing more
    EarlierTurnOpen               an earlier turn of the session has not ended; take this turn later

Every message is one sentence that says what to do. Errors from other libraries are mapped to this tree where the
library is called.
"""

from typing import Literal

ModelKind = Literal[
    "authorisation", "quota", "rate", "context", "content", "overloaded", "network", "timeout", "invalid", "protocol"
]


class TidegateError(Exception):
    """Base class of all errors that Tidegate raises deliberately."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Refused(TidegateError):
    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.param = param


class Unauthenticated(Refused):
    status = 401
    code = "invalid_api_key"


class NotAllowed(Refused):
    status = 403
    code = "not_allowed"


class NotFound(Refused):
    status = 404
    code = "not_found"


class Conflict(Refused):
    status = 409
    code = "conflict"


class TooLarge(Refused):
    """A named limit was exceeded. `limit` is the setting's name and `value` is its value."""

    status = 413
    code = "too_large"

    def __init__(self, message: str, *, limit: str, value: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.limit = limit
        self.value = value


class IdempotencyMismatch(Refused):
    status = 422
    code = "idempotency_mismatch"


class Busy(Refused):
    status = 429
    code = "busy"

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after: float | None = retry_after


class BudgetSpent(Busy):
    """A budget is used up. If `retry_after` is None, the budget does not renew: raise the limit, or start a new
    conversation or job."""

    code = "budget_spent"

    def __init__(self, message: str, *, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyConnections(Busy):
    status = 503
    code = "too_many_connections"


class Stopping(Busy):
    status = 503
    code = "stopping"


class ModelFailed(TidegateError):
    """A failed request to a model endpoint.

    `endpoint_message` is the message from the endpoint. It may quote the conversation, so only participants see it; the
    log contains only `brief`. `partial_answer` is true if the user has already seen part of the answer.
    `received_bytes` counts the bytes received, including hidden reasoning and tool calls. If the endpoint refused the
    request, one of these may be true: `reasoning` if the cause was opaque reasoning from earlier answers, `large` if it
    was the size of the request or of an image, or `documents` if it was a document. `param` names a field of the
    caller's request that the model does not support."""

    def __init__(
        self,
        message: str,
        *,
        kind: ModelKind,
        retryable: bool,
        retry_after: float | None = None,
        upstream_status: int | None = None,
        endpoint_message: str = "",
        partial_answer: bool = False,
        reasoning: bool = False,
        large: bool = False,
        documents: bool = False,
        param: str | None = None,
    ) -> None:
        super().__init__(f"{message} It said: {endpoint_message}" if endpoint_message else message)
        self.brief = message
        self.endpoint_message = endpoint_message
        self.kind: ModelKind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.upstream_status = upstream_status
        self.partial_answer = partial_answer
        self.received_bytes = 0
        self.reasoning = reasoning
        self.large = large
        self.documents = documents
        self.param = param
        self.retried = False
        """True if the request was retried before this error was raised."""

    def add(self, sentence: str) -> None:
        """Appends a sentence to the message."""
        self.brief = f"{self.brief} {sentence}"
        self.message = f"{self.message} {sentence}"
        self.args = (self.message,)


class ToolFailed(TidegateError):
    pass


class MediaLeftOut(ToolFailed):
    pass


class TurnFailed(TidegateError):
    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class GivenUp(TurnFailed):
    """The turn was interrupted and will not be resumed. The sender may send it again."""


class Misconfigured(TidegateError):
    pass


class StoreFailed(TidegateError):
    pass


class StoreBusy(StoreFailed):
    pass


class StoreFull(StoreFailed):
    pass


class DiskFailed(StoreFailed):
    pass


class StoreLost(StoreFailed):
    pass


class StoreDamaged(StoreFailed):
    pass


class StoreNewer(StoreFailed):
    pass


class HookPostponed(Exception):
    """A slow end hook could not be prepared, and the reason has been logged. Run it again later."""


class Superseded(Exception):
    """Another attempt has taken over the turn, or the turn has been settled elsewhere. The attempt that receives this
    error stops without writing anything."""


class EarlierTurnOpen(Exception):
    """The turn is not taken because an earlier turn of its session has not ended. The later turn stays in the queue."""
