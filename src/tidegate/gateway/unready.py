"""Why a gateway would refuse to start. Light, so that the command line can name it without the rooms behind it."""

from typing import TYPE_CHECKING

from tidegate.errors import Misconfigured

if TYPE_CHECKING:
    from tidegate.config import Config


class Unready(Misconfigured):
    """The gateway would refuse to start. `config` is there when the file itself is right."""

    def __init__(self, errors: tuple[str, ...], config: "Config | None" = None) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.config = config
