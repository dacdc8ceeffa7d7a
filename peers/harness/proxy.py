"""mitmproxy before a peer. The faults are in faults.py, which it loads."""

import json
import signal
from pathlib import Path

from .processes import Failed, Program, call, eventually, free_port


class Proxy:
    """Passes everything on, and loses the answers that it is told to."""

    def __init__(self, mitmdump: Path, directory: Path, upstream_port: int):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            mitmdump, "--quiet", "--set", f"confdir={directory / 'mitmproxy'}",
            "--mode", f"reverse:http://127.0.0.1:{upstream_port}@127.0.0.1:{self.port}",
            "--set", "connection_strategy=lazy", "--scripts", Path(__file__).with_name("faults.py"),
        ]  # fmt: skip
        self.program = Program("mitmproxy", command, directory)
        self.program.wait_listening(self.port)

    def next(self, fault: str, contains: str) -> None:
        """What happens to the next request that contains this text."""
        rule = {"fault": fault, "contains": contains}
        status, _, body = call("POST", f"{self.url}/-/next", json.dumps(rule).encode())
        if status != 204:
            raise Failed(f"mitmproxy has no faults: {status} {body[:200]}")

    def seen(self) -> list[dict]:
        return json.loads(call("GET", f"{self.url}/-/seen")[2])

    def wait_seen(self, count: int) -> list[dict]:
        """Waits until so many answers were lost: each was given by the peer, after its work."""
        eventually(f"{count} answers are lost", lambda: len(self.seen()) >= count)
        return self.seen()

    def stop(self) -> None:
        # Its grace for open connections is of no use here: some are kept for good.
        self.program.stop(signal.SIGKILL)
