"""Models: the configured models, the provider formats, and calls to the models' endpoints.

A conversation's request is encoded once and only grows at its end. Every call ends with a Message or a ModelFailed.
Only credentials that the configuration names are used, and no credential appears in a message or a log.

Other packages import from here, and from `tidegate.models.recording` to record or replay traffic:

- `interface.py`: the `Model` and `Wire` protocols.
- `registry.py`: `Models`, which creates the configured models.
- `catalog/`: facts about models: windows, capabilities, prices.
- `formats/`: the provider formats. `formats/format.py` says how to add one.
- `embeddings.py`, `transcription.py`, `speech.py`: models of other kinds than chat.
- `http/`: requests with retries (`endpoint.py`, `http_model.py`, `retry.py`), keys, failures.
- `recording/` and `demo/`: loaded only when needed.
"""

from tidegate.models.catalog.catalog import Catalog
from tidegate.models.catalog.facts import Facts, Prices
from tidegate.models.formats.json_repair import repair_json
from tidegate.models.formats.request_text import NOTES_TASK, SUMMARY_TASK
from tidegate.models.formats.token_counts import CountedModel, checked_usage
from tidegate.models.http.retry import RetryPolicy
from tidegate.models.interface import EncodedPrefix, Model, Wire
from tidegate.models.registry import Models, ModelState

__all__ = [
    "NOTES_TASK",
    "SUMMARY_TASK",
    "Catalog",
    "CountedModel",
    "EncodedPrefix",
    "Facts",
    "Model",
    "ModelState",
    "Models",
    "Prices",
    "RetryPolicy",
    "Wire",
    "checked_usage",
    "repair_json",
]
