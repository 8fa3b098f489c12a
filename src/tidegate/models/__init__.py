"""Models: one shared HTTP client, the wire formats, and what is configured, by name.

Guarantee: a conversation's request is encoded once and grows only at its end; whatever an endpoint does ends as a
Message or a ModelFailed; no credential is taken that the configuration does not name, and none is ever told.
"""

from tidegate.models.catalog.facts import Facts
from tidegate.models.formats.json_repair import repaired
from tidegate.models.formats.request_text import NOTES_TASK, SUMMARY_TASK
from tidegate.models.formats.token_counts import believed
from tidegate.models.http.clients import Clients, ClientStats, Lease
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.http.transport import Transport
from tidegate.models.interface import EncodedPrefix, Model, Wire
from tidegate.models.registry import Models, ModelState

__all__ = [
    "NOTES_TASK",
    "SUMMARY_TASK",
    "ClientStats",
    "Clients",
    "EncodedPrefix",
    "Facts",
    "Lease",
    "Model",
    "ModelState",
    "Models",
    "RetryPolicy",
    "Transport",
    "Wire",
    "believed",
    "repaired",
]
