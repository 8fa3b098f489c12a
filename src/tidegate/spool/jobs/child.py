"""A child of the gateway that does one job and ends: this is what it runs.

Guarantee: before the job begins, the child has given up what it does not need: it may use so much memory and time and
write so much, and start no process. It outlives its time by no more than a second, also when the gateway is gone. It
imports nothing but the job, and the gateway imports nothing of it.

    python -I -S worker.py JOB MEMORY SECONDS WRITTEN ORDER    JOB is its file without the `.py`, ORDER is JSON
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
    sys.stderr.buffer.write(b"\n" + report.encode("utf-8", "replace"))  # a line of its own, whatever a library has said


if __name__ == "__main__":
    main()
