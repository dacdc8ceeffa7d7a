"""Starting and stopping programs, each by its own pid, none left behind."""

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

#: prctl: the signal that a child gets when its parent dies.
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A peer or the server is not as a scenario needs it."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(what: str, look: Callable, limit_s: float = 60):
    """Waits until `look` answers something true, and answers that."""
    until = time.monotonic() + limit_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > until:
            raise Failed(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    """Whether somebody listens on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A running program. Its output goes to a file; it dies with us."""

    def __init__(self, name: str, command: list, directory: Path, environment: dict | None = None):
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                [str(part) for part in command],
                cwd=directory,
                env={**os.environ, "HOME": str(directory), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 (one thread)
            )

    @property
    def pid(self) -> int:
        return self.child.pid

    def ended(self) -> bool:
        return self.child.poll() is not None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def wait_listening(self, port: int, limit_s: float = 60) -> None:
        def look() -> bool:
            if self.ended():
                raise Failed(f"{self.name} ended while starting:\n{self.tail()}")
            return accepts(port)

        eventually(f"{self.name} listens on {port}", look, limit_s)

    def wait_ended(self, limit_s: float = 60) -> int:
        """Its exit status."""
        eventually(f"{self.name} ends", self.ended, limit_s)
        return self.child.returncode

    def kill9(self) -> None:
        self.child.kill()
        self.child.wait()

    def stop(self, how: int = signal.SIGTERM) -> None:
        if not self.ended():
            self.child.send_signal(how)
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                self.kill9()


def run(command: list, directory: Path, **options) -> str:
    """Runs a program to its end and answers what it printed; an error if it fails."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        text=True,
        capture_output=True,
        check=False,
        **{"env": {**os.environ, "HOME": str(directory)}, "stdin": subprocess.DEVNULL, **options},
    )
    if result.returncode:
        raise Failed(f"{command[0]} ended with {result.returncode}: {(result.stdout + result.stderr)[-2000:]}")
    return result.stdout


def call(method: str, url: str, body: bytes | None = None, headers: dict | None = None, timeout_s: float = 10):
    """One HTTP request: its status, headers and body. An answer that is lost raises OSError."""
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read()
