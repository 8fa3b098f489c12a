"""The main program of a child process that runs one job.

Before the job starts, the child limits its own memory, time and output, and gives up the right to start processes. Even
if the gateway no longer exists, the child exceeds its time limit by at most a second. It imports only the job, and the
gateway never imports it.

    python -I -S child.py JOB MEMORY SECONDS WRITTEN ORDER    JOB is a file name without `.py`, ORDER is JSON
"""

import importlib
import json
import os
import resource
import signal
import sys


def main() -> None:
    path, memory, seconds, written, order = sys.argv[1:]
    folder, name = os.path.split(path)
    until = int(seconds) + 1
    signal.alarm(until)
    for limit, most in (
        (resource.RLIMIT_AS, int(memory)),
        (resource.RLIMIT_CPU, until),
        (resource.RLIMIT_FSIZE, int(written)),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, highest = resource.getrlimit(limit)
        most = most if highest == resource.RLIM_INFINITY else min(most, highest)
        resource.setrlimit(limit, (most, most))
    sys.path.append(folder)
    job = importlib.import_module(name)
    report = json.dumps(job.work(json.loads(order)), ensure_ascii=False)
    sys.stderr.buffer.write(
        b"\n" + report.encode("utf-8", "replace")
    )  # on a line of its own, since libraries may write to stderr


if __name__ == "__main__":
    main()
