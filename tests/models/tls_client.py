"""A client that calls models behind https in a separate process, because trusted authorities are fixed at its start.

`python -m tests.models.tls_client ADDRESS…` prints one line of JSON for each address, with the answer or the failure,
and last the number of TLS contexts that were made."""

import asyncio
import json
import ssl
import sys
from typing import Any

from tests.models.support import ask, configured
from tidegate.errors import ModelFailed
from tidegate.http_client import HttpClient


def count_contexts() -> list[object]:
    """Count every TLS context that is made from now on. The library makes two when it is imported."""
    HttpClient.load()
    made: list[object] = []
    make = ssl.SSLContext.__new__

    def counted(kind: Any, *given: Any, **named: Any) -> Any:
        made.append(kind)
        return make(kind, *given, **named)

    ssl.SSLContext.__new__ = counted  # type: ignore[method-assign,assignment]
    return made


async def main(addresses: list[str]) -> None:
    made = count_contexts()
    async with HttpClient() as clients:
        for address in addresses:
            async with configured(address, clients=clients, key="env:CANARY", retries=2) as model:
                try:
                    print(json.dumps({"text": (await ask(model, "hello")).text}))
                except ModelFailed as failed:
                    print(json.dumps({"kind": failed.kind, "retryable": failed.retryable, "message": failed.message}))
    print(json.dumps({"contexts": len(made)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
