"""The error tree, named by what the receiver does with it.

    TidegateError
    ├── Refused            the caller must change the request; carries an HTTP status and a code
    │   ├── Unauthenticated   401  bring a valid key
    │   ├── NotAllowed        403  this principal may not do it
    │   ├── NotFound          404  there is none that this principal may know of
    │   ├── Conflict          409  it contradicts what the session already is
    │   ├── TooLarge          413  a named limit was exceeded
    │   ├── Mismatch          422  the same idempotency key with another body
    │   ├── Busy              429  try again later (retry_after)
    │   ├── BudgetSpent       429  no model is asked until the budget opens again (retry_after, or never)
    │   ├── Crowded           503  all connections are in use; try again later (retry_after)
    │   └── Stopping          503  the gateway is going down; what was accepted goes on after its next start
    ├── ModelFailed        the model's side failed; `kind` says how, `retryable` whether trying again may help
    ├── ToolFailed         tell the model in one sentence; the turn goes on
    │   └── MediaLeftOut      tell the user as well: media could not be kept
    ├── TurnFailed         the turn cannot go on (step limit, loop, resume budget); tell the user
    ├── Misconfigured      the operator must change the configuration
    └── StoreFailed        the store cannot do it now
        ├── StoreBusy         too much waits, or it took too long; try again in a moment
        ├── StoreFull         no room on the disk; what needs no write goes on
        ├── DiskFailed        the disk refuses for another reason, which it names; look at the disk
        ├── StoreLost         the database's path is no longer the open file; nothing is accepted until a restart
        ├── StoreDamaged      a part of the database cannot be decoded; restore a backup
        └── StoreNewer        the file was written by a newer program; it is left alone

Every message is one sentence that says what to do. Foreign errors are mapped to this tree at the edge of the room
that called the foreign code.
"""

from typing import Literal

ModelKind = Literal[
    "authorisation", "quota", "rate", "context", "content", "overloaded", "network", "timeout", "invalid", "protocol"
]


class TidegateError(Exception):
    """Base of everything that Tidegate raises on purpose."""

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
    """A named limit was exceeded; `limit` is the setting's name and `value` its value."""

    status = 413
    code = "too_large"

    def __init__(self, message: str, *, limit: str, value: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.limit = limit
        self.value = value


class Mismatch(Refused):
    status = 422
    code = "idempotency_mismatch"


class Busy(Refused):
    status = 429
    code = "busy"

    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after: float | None = retry_after


class BudgetSpent(Busy):
    """Without `retry_after`, waiting does not help: the limit must be raised, or something new begun."""

    code = "budget_spent"

    def __init__(self, message: str, *, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Crowded(Busy):
    status = 503
    code = "too_many_connections"


class Stopping(Busy):
    status = 503
    code = "stopping"


class ModelFailed(TidegateError):
    """What a model's endpoint did wrong. `said` are its own words, which may quote the conversation: they are for who
    is in it, and `brief` is for the log. `shown` says that text of the failed answer was already visible, `heard` how
    many bytes of it had come, with thoughts and calls that nobody sees; `thoughts` that what is refused is what earlier
    answers carried beside their words, `large` that it is the request's bytes, or those of a picture in it, `documents`
    that it is a document. `param` is the field of the caller's request that the model cannot be given."""

    def __init__(
        self,
        message: str,
        *,
        kind: ModelKind,
        retryable: bool,
        retry_after: float | None = None,
        upstream_status: int | None = None,
        said: str = "",
        shown: bool = False,
        thoughts: bool = False,
        large: bool = False,
        documents: bool = False,
        param: str | None = None,
    ) -> None:
        super().__init__(f"{message} It said: {said}" if said else message)
        self.brief = message
        self.said = said
        self.kind: ModelKind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.upstream_status = upstream_status
        self.shown = shown
        self.heard = 0
        self.thoughts = thoughts
        self.large = large
        self.documents = documents
        self.param = param
        self.retried = False
        """Whether the same was asked again before it was given up."""

    def add(self, sentence: str) -> None:
        """Something more that people should know of it."""
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


class NotYet(Exception):
    """A slow end hook could not be prepared and has logged why. Receiver: try it again later."""
