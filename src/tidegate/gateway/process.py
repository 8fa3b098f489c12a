"""The gateway as a process: its loop, its signals, its end.

Guarantee: SIGTERM, SIGINT and SIGHUP stop it in order within one budget, a second one does not wait for turns; should
the order itself hang, the process ends all the same shortly after its budget, with the stacks of its threads on
standard error. What keeps it from starting is raised, as one sentence.
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
    0.0005  # a commit asks for the interpreter's lock about ten times; by default each may wait 5 ms for it
)
_OVERTIME_SECONDS = 3.0  # after the budget: then no order is left to wait for


_DESCRIPTORS = 65_536  # a session with a background process needs nine; more than this is somebody's mistake


def run_process(
    home: Path, *, port: int | None, replace: bool, record: Path | None, replay: Path | None, say: Callable[[str], None]
) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    descriptors = Descriptors()
    descriptors.keep(_DESCRIPTORS)  # most systems give a process 1,024 at first and let it ask for more
    asyncio.run(
        _serve(
            Gateway(home, port=port, replace=replace, record=record, replay=replay, say=say, descriptors=descriptors)
        )
    )


async def _serve(house: Gateway) -> None:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, house.ask_to_stop)
    try:
        if not await house.build():
            return
        await house.until_asked()
        faulthandler.dump_traceback_later(house.budget + _OVERTIME_SECONDS, exit=True)
        try:
            await house.close()
        finally:
            faulthandler.cancel_dump_traceback_later()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
