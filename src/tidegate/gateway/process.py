"""Running the gateway as a process, with an event loop, signal handlers and an exit code.

SIGTERM, SIGINT and SIGHUP stop the gateway gracefully, within one time budget; after a second signal, it no longer
waits for turns. If the graceful stop hangs, the process exits shortly after the budget is used up and prints its
threads' stacks to standard error. The same happens if a plug-in's task or thread is still running when everything else
is closed. If the gateway fails to start, an error with a one-sentence message is raised.
"""

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.gateway.gateway import Gateway
from tidegate.lifetimes import Descriptors

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SWITCH_SECONDS = (
    0.0005  # a commit takes the interpreter's lock about ten times, each time waiting up to 5 ms by default
)
_OVERTIME_SECONDS = 3.0  # after the budget, before the process is forced to exit
_DESCRIPTORS = 65_536  # a session with a background process needs nine; needing more than this is a mistake


def run_process(
    home: Path, *, port: int | None, replace: bool, record: Path | None, replay: Path | None, say: Callable[[str], None]
) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    descriptors = Descriptors()
    descriptors.keep(_DESCRIPTORS)  # most systems start processes with 1,024 and allow raising that
    asyncio.run(
        _serve(
            Gateway(home, port=port, replace=replace, record=record, replay=replay, say=say, descriptors=descriptors)
        )
    )


async def _serve(gateway: Gateway) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, gateway.ask_to_stop)
    try:
        if not await gateway.build():
            return
        await gateway.wait_for_stop()
        faulthandler.dump_traceback_later(gateway.budget + _OVERTIME_SECONDS, exit=True)
        await gateway.close()
    finally:
        # Everything is closed. Anything still running, such as a plug-in's thread, must not keep the process alive.
        faulthandler.dump_traceback_later(_OVERTIME_SECONDS, exit=True)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
