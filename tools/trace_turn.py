"""The path of one plain turn through the source tree.

    python tools/trace_turn.py             functions, files and changes of package, then the files in order of entry
    python tools/trace_turn.py --markdown  the same as the table in ARCHITECTURE.md
    python tools/trace_turn.py --json      every function, for a program

A gateway with the demo model runs in this process. Two turns of one conversation are sent to it over a socket, and the
second is traced in all threads: every function of the package that was called, in order. A change of package is a call
from a function of one package to a function of another; the same pair of functions counts once.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import tidegate
from tidegate.gateway.gateway import Gateway

CONFIGURATION = """
[models.main]
api = "demo"
[agents.main]
model = "main"
prompt = "You are traced."
tools = []
[memory]
at_end = false
"""

SOURCE = str(Path(tidegate.__file__).resolve().parent) + "/"


@dataclass
class Trace:
    """The calls of a traced turn, in order, as (file below the package, function)."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    crossings: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of functions, caller and called, of different packages."""

    def profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        called = code.co_filename[len(SOURCE) :]
        self.calls.append((called, code.co_qualname))
        caller = frame.f_back
        if caller is not None and caller.f_code.co_filename.startswith(SOURCE):
            file = caller.f_code.co_filename[len(SOURCE) :]
            if _package(file) != _package(called):
                self.crossings.add((f"{file}:{caller.f_code.co_qualname}", f"{called}:{code.co_qualname}"))

    @property
    def functions(self) -> list[str]:
        return list(dict.fromkeys(f"{file}:{name}" for file, name in self.calls))

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))


def _package(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


def traced_turn() -> Trace:
    """The second of two plain turns."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(_run(Path(home), trace))
    return trace


async def _run(home: Path, trace: Trace) -> None:
    # The store's threads exist before the trace begins: they profile from their start, and count only while it is on.
    heard = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if heard:
            trace.profile(frame, event, argument)

    (home / "tidegate.toml").write_text(CONFIGURATION)
    threading.setprofile(profile)
    gateway = Gateway(home, port=0, say=lambda _line: None)
    await gateway.build()
    try:
        key = (home / "api-key").read_text().strip()
        await asyncio.to_thread(_say, gateway.address, key, "Hello")
        await asyncio.sleep(1)  # for the background work of a start
        sys.setprofile(profile)
        heard = True
        await asyncio.to_thread(_say, gateway.address, key, "Hello again")
        heard = False
        sys.setprofile(None)
    finally:
        threading.setprofile(None)
        gateway.ask_to_stop()
        await gateway.close()


def _say(address: str, key: str, text: str) -> None:
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        data=json.dumps({"model": "main", "messages": [{"role": "user", "content": text}]}).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json", "X-Session-Id": "traced"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        response.read()


def _markdown(trace: Trace) -> Iterator[str]:
    yield "| file | functions called, in order of entry |"
    yield "|---|---|"
    for file in trace.files:
        called = list(dict.fromkeys(name for each, name in trace.calls if each == file))
        yield f"| `{file}` | {len(called)}: `{called[0]}`{' …' if len(called) > 1 else ''} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    trace = traced_turn()
    if arguments.json:
        print(json.dumps({"functions": trace.functions, "files": trace.files, "package_changes": len(trace.crossings)}))
        return
    if arguments.markdown:
        print("\n".join(_markdown(trace)))
        return
    print(f"{len(trace.functions)} functions in {len(trace.files)} files, {len(trace.crossings)} changes of package")
    for file in trace.files:
        print(f"  {file}")


if __name__ == "__main__":
    main()
