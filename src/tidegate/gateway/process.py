"""The gateway as a process: its loop, its signals, what it prints, and its exit code.

Guarantee: SIGTERM, SIGINT and SIGHUP stop it in order within one budget, a second one does not wait for turns; should
the order itself hang, the process ends all the same shortly after its budget, with the stacks of its threads on
standard error. What keeps it from starting is one sentence there, and exit code 1.
"""

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.gateway.house import House

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OVERTIME_SECONDS = 3.0  # after the budget: then no order is left to wait for


def run_process(home: Path, *, port: int | None, replace: bool) -> int:
    try:
        return asyncio.run(_serve(House(home, port=port, replace=replace, say=_say)))
    except TidegateError as error:
        print(f"tidegate: {error.message}", file=sys.stderr)
        return 1


def _say(line: str) -> None:
    print(line, flush=True)


async def _serve(house: House) -> int:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, house.ask_to_stop)
    try:
        if not await house.build():
            return 0
        await house.until_asked()
        faulthandler.dump_traceback_later(house.budget + _OVERTIME_SECONDS, exit=True)
        try:
            await house.close()
        finally:
            faulthandler.cancel_dump_traceback_later()
        return 0
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
