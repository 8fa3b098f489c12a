"""Whose cancellation it is.

Guarantee: `is_cancelled` is true exactly while somebody wants the running task to end. A `CancelledError` that arrives
while it is false came from something that the task had waited for, and is a failure like any other.
"""

import asyncio


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
