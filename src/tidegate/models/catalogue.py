"""Being written by its helper: replace this file."""

from tidegate.config import ModelSettings
from tidegate.models.facts import Facts


def facts_of(settings: ModelSettings) -> Facts:
    return Facts(vision=True, thinking="effort", efforts=("none", "minimal", "low", "medium", "high", "xhigh"))
