"""The context of a plug-in: its settings, a folder, a log, a scope and its secrets. Plug-ins receive nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate.config import is_reference
from tidegate.errors import Misconfigured
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.security import Secret


class PluginContext:
    """The argument of a plug-in's factory. The context is valid until the plug-in is stopped.

    `settings` is the `[plugins.NAME]` table of the configuration. `folder` is an existing private folder for the
    plug-in's data. `log` writes to the gateway's log under the plug-in's name. Background tasks, context managers and
    callbacks belong in `scope`, which closes with the plug-in: its tasks are cancelled, then the object's `stop` is
    awaited, then everything that was entered in the scope is exited, in reverse order.
    """

    __slots__ = ("_secrets", "folder", "log", "name", "scope", "settings")

    def __init__(
        self, name: str, settings: Mapping[str, Any], folder: Path, scope: Scope, secrets: Mapping[str, Secret]
    ) -> None:
        self.name = name
        self.settings = settings
        self.folder = folder
        self.log = Log(f"tidegate.plugins.{name}")
        self.scope = scope
        self._secrets = secrets

    def secret(self, setting: str) -> Secret:
        """Returns the secret that a setting of this plug-in refers to (`env:NAME` or `file:PATH`)."""
        reference = self.settings.get(setting)
        if not isinstance(reference, str) or not is_reference(reference):
            raise Misconfigured(
                f'[plugins.{self.name}] {setting} must refer to a secret, as "env:NAME" or "file:PATH"; add it'
            )
        if reference not in self._secrets:
            raise Misconfigured(
                f"[plugins.{self.name}] {setting} refers to {reference}, but there is no such secret; provide it"
            )
        return self._secrets[reference]
