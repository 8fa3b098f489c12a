"""`tidegate stop`: stops the running gateway, and waits until it has exited."""

import contextlib
import sys
import time
from pathlib import Path

import click

from tidegate.cli.options import home_option, json_option
from tidegate.cli.output import plural, print_json
from tidegate.errors import TidegateError
from tidegate.gateway import ControlUnanswered, Holder, ask, holder_of

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 10.0  # added to the gateway's own time limit, for a machine under load


@click.command("stop")
@home_option
@json_option
def command(home: Path, as_json: bool) -> None:
    """Stop the running gateway gracefully.

    Running turns may finish within [limits] shutdown_seconds; the rest continue after the next start.
    """
    holder = holder_of(home)
    if holder is None:
        if as_json:
            print_json({"stopped": False, "pid": None})
        else:
            print(f"No gateway is running for {home}.")
        return
    began = time.monotonic()
    answer = ask(home, {"do": "stop"})
    deadline = began + float(answer.get("within", 0)) + _GRACE_SECONDS
    try:
        if turns := int(answer.get("turns", 0)):
            waits = f"waiting for {plural(turns, 'turn')}; press Ctrl-C to resume them after a restart"
            print(waits, file=sys.stderr, flush=True)
        _wait(home, holder, deadline)
    except KeyboardInterrupt:
        # After a second request, the gateway does not wait for turns. It may even have exited by now.
        with contextlib.suppress(ControlUnanswered):
            ask(home, {"do": "stop"})
        _wait(home, holder, deadline)
    took = time.monotonic() - began
    if as_json:
        print_json({"stopped": True, "pid": holder.pid, "seconds": round(took, 3)})
    else:
        print(f"Stopped ({holder}) in {took:.1f} s.")


def _wait(home: Path, holder: Holder, deadline: float) -> None:
    """Waits until this gateway has released the home folder. Another gateway may hold the folder afterwards."""
    while (found := holder_of(home)) is not None and (not found.pid or found.is_same(holder)):
        if time.monotonic() > deadline:
            raise TidegateError(
                f"The gateway ({holder}) did not stop in time: check its log, or kill it with "
                f"`kill -9 {holder.pid}`, which loses no accepted message."
            )
        time.sleep(_POLL_SECONDS)
