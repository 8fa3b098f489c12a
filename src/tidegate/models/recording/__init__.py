"""Recordings of model traffic, which are written without secrets and replayed in place of the network.

This package is separate from `tidegate.models` so that it is loaded only by gateways that record or replay. `check`
tests whether a recording can be started at a path.
"""

from tidegate.models.recording.recorder import TransportRecorder
from tidegate.models.recording.replayer import TransportReplayer
from tidegate.models.recording.writer import check

__all__ = ["TransportRecorder", "TransportReplayer", "check"]
