"""Configuration checks that run before a gateway starts.

This module is lightweight: the CLI can import it without the packages that the checks need.
"""

from typing import TYPE_CHECKING

from tidegate.errors import Misconfigured

if TYPE_CHECKING:
    from tidegate.config import Config


class PreflightFailed(Misconfigured):
    """The gateway cannot start. `config` is set if the configuration file itself is valid."""

    def __init__(self, errors: tuple[str, ...], config: "Config | None" = None) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.config = config
