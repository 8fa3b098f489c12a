"""`python -m bench.scripted_model`: the scripted model server as a process.

It prints `ready URL` and serves until SIGTERM or SIGINT. `bench.scripted` documents its formats and directives.
"""

import argparse
import asyncio
import signal

from bench.scripted import RECORDED, ScriptedModel

__all__ = ["RECORDED", "ScriptedModel"]


async def serve(host: str, port: int, key: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    async with ScriptedModel(host=host, port=port, key=key) as model:
        print(f"ready {model.root}", flush=True)
        await stop.wait()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.scripted_model", description="A strict scripted model.")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--key", default=None, help="refuse any other key")
    given = options.parse_args()
    asyncio.run(serve(given.host, given.port, given.key))


if __name__ == "__main__":
    main()
