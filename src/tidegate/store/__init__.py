"""The store: the truth about every conversation, in one SQLite file.

Guarantee: what was acknowledged is on disk before its caller is told, and survives the death of the process (with
`durability = "power"`, of the machine). Other rooms send functions to a `Store`; the functions of the modules named
here are made to be sent, each module works on one noun, and nothing else knows a table.
"""

from tidegate.store import (
    approvals,
    endings,
    intents,
    maintenance,
    messages,
    outbox,
    principals,
    receipts,
    search,
    sessions,
    settings,
    turns,
    usage,
)
from tidegate.store._writer import Durability, Fault
from tidegate.store.database import Store, StoreStats
from tidegate.store.rows import (
    ApprovalRow,
    Db,
    DeliveryRow,
    Found,
    KeyKind,
    KeyRow,
    MessageRow,
    PrincipalRow,
    ReceiptRow,
    SessionKind,
    SessionRow,
    Setting,
    TurnRow,
    UsageTotal,
)

__all__ = [
    "ApprovalRow",
    "Db",
    "DeliveryRow",
    "Durability",
    "Fault",
    "Found",
    "KeyKind",
    "KeyRow",
    "MessageRow",
    "PrincipalRow",
    "ReceiptRow",
    "SessionKind",
    "SessionRow",
    "Setting",
    "Store",
    "StoreStats",
    "TurnRow",
    "UsageTotal",
    "approvals",
    "endings",
    "intents",
    "maintenance",
    "messages",
    "outbox",
    "principals",
    "receipts",
    "search",
    "sessions",
    "settings",
    "turns",
    "usage",
]
