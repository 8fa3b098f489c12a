"""Checks of proxies and certificate authorities, run before a gateway starts.

Secrets that the settings refer to are checked as well, but never quoted.
"""

from collections.abc import Iterator, Mapping

from tidegate.config import FILE_NAME, Config, is_reference
from tidegate.errors import Misconfigured
from tidegate.http_client import Network
from tidegate.security import Secret


def faults(config: Config, secrets: Mapping[str, Secret], environment: Mapping[str, str]) -> Iterator[str]:
    """Yields an error for each proxy and each file of certificate authorities that cannot be used."""
    try:
        network = Network(config.network, environment=environment, resolve=secrets.__getitem__, home=config.home)
    except Misconfigured as error:
        yield error.message
        return
    tables = [("[network]", config.network.proxy, config.network.ca_file), ("[web]", config.web.proxy, None)]
    tables += [(f"[models.{name}]", model.proxy, model.ca_file) for name, model in config.models.items()]
    for where, proxy, ca_file in tables:
        if is_reference(proxy) and proxy not in secrets:
            continue  # already reported
        try:
            network.check(where, proxy, ca_file or "")
        except Misconfigured as error:
            yield f"{FILE_NAME}: {error.message}"
