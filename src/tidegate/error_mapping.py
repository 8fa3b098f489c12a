"""Failures: the form in which errors are stored, replayed and sent to clients.

Guarantee: every error gets a status, a type and a code in OpenAI's format, and one sentence without secrets. Store
errors are worded for chat users, who may have to act on them; the store's own message goes to the operator's log. An
unexpected error is reported as an incident, whose id is also in the operator's log.
"""

import errno

from tidegate.errors import (
    BudgetSpent,
    DiskFailed,
    GivenUp,
    ModelFailed,
    Refused,
    StoreBusy,
    StoreDamaged,
    StoreFailed,
    StoreFull,
    StoreLost,
    TidegateError,
    TurnFailed,
)
from tidegate.values import Failure, new_id

_MODEL_STATUS = {
    "rate": 429,
    "quota": 429,
    "overloaded": 503,
    "network": 502,
    "timeout": 504,
    "context": 400,
    "content": 400,
}
"""The HTTP status for each kind of model failure; 502 for any other kind."""

_OPENAI_CODES = {
    "rate": ("rate_limit_error", "rate_limit_exceeded"),
    "quota": ("rate_limit_error", "insufficient_quota"),
    "context": ("invalid_request_error", "context_length_exceeded"),
    "content": ("invalid_request_error", "content_policy_violation"),
}
"""Type and code for each kind of model failure for which OpenAI defines them. Clients already handle these."""

FULL = "The gateway's disk is full, so nothing can be stored; free some space on it, then try again."
BUSY = "The gateway is overloaded and has not done this; try again in a moment."
BROKEN = "The gateway could not read or store this; try again in a moment, or ask its operator to check the log."


def failure_of(error: BaseException) -> Failure:
    """Returns the failure to report for an error that ended a turn or request."""
    match error:
        case ModelFailed(param=str()):
            return Failure(
                message=error.message,
                type="invalid_request_error",
                code="unsupported_parameter" if error.upstream_status is None else "invalid_value",
                status=400,
                param=error.param,
            )
        case ModelFailed(large=True):
            return Failure(message=error.message, type="invalid_request_error", code="request_too_large", status=413)
        case ModelFailed():
            type, code = _OPENAI_CODES.get(error.kind, ("model_error", f"model_{error.kind}"))
            return Failure(
                message=error.message,
                type=type,
                code=code,
                status=_MODEL_STATUS.get(error.kind, 502),
                retry=error.retryable,
                retry_after=error.retry_after,
                final=error.retried or not error.retryable,
            )
        case GivenUp():
            return Failure(message=error.message, type="turn_error", code=error.code, status=502)
        case TurnFailed():
            return Failure(message=error.message, type="turn_error", code=error.code, status=502, final=True)
        case BudgetSpent():
            return Failure(
                message=error.message,
                type="rate_limit_error",
                code=error.code,
                status=error.status,
                retry=error.retry_after is not None,
                retry_after=error.retry_after,
            )
        case Refused():
            return Failure(
                message=error.message,
                type="invalid_request_error",
                code=error.code,
                status=error.status,
                param=error.param,
            )
        case StoreFull():
            return Failure(message=FULL, code="store_full", status=507, retry=True)
        case StoreBusy():
            return Failure(message=BUSY, code="store_busy", status=503, retry=True)
        case StoreDamaged():
            return Failure(message=error.message, code="store_damaged", status=500, final=True)
        case StoreLost():
            return Failure(message=error.message, code="store_lost", status=503, retry=True)
        case DiskFailed():
            return Failure(message=error.message, code="disk_failed", status=503, retry=True)
        case StoreFailed():
            return Failure(message=BROKEN, code="store_failed", status=503, retry=True)
        case TidegateError():
            return Failure(message=error.message, code="misconfigured", status=500, final=True)
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return Failure(
                message="The gateway has no file descriptors left; try again soon.",
                code="no_descriptors",
                status=503,
                retry=True,
            )
        case _:
            incident = new_id("i")
            return Failure(
                message=f"An internal error occurred; the gateway's log has the details under incident {incident}.",
                code="internal",
                status=500,
            )


def stopped_failure(by: str, *, abandoned: bool = False) -> Failure:
    """Returns the failure of a stopped turn. `abandoned` is true if the turn was stopped only because its caller had
    disconnected; a retry is then reasonable."""
    message = f"The turn was stopped {by}."
    return Failure(message=message, type="turn_error", code="stopped", status=409, retry=abandoned, final=not abandoned)
