"""Runs the worker of the examples until it is killed, or holds it: python killed.py EXAMPLES WHEN FILE WORKER_ARGUMENT...

WHEN: never, before_publish, after_publish (the stream has it, the ledger does not know); with _held it writes FILE there,
and waits until it is gone.
"""

import asyncio
import functools
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import nats_worker


def before(step, inner):
    """The same function, with something in front of its first call."""
    calls = []

    def outer(*arguments):
        calls.append(inner)
        if len(calls) == 1:
            step()
        return inner(*arguments)

    return outer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(file: Path) -> None:
    file.touch()
    while file.exists():
        time.sleep(0.02)


def main(when: str, file: str, *arguments: str) -> None:
    nats_worker.LEASE = "3 s"
    step = functools.partial(hold, Path(file)) if when.endswith("_held") else die
    if when.startswith("before_publish"):
        nats_worker.publish = before(step, nats_worker.publish)
    elif when.startswith("after_publish"):
        nats_worker.confirm = before(step, nats_worker.confirm)
    sys.exit(asyncio.run(nats_worker.work(*arguments)))


main(*sys.argv[2:])
