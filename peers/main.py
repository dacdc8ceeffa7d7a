"""Runs the scenarios of the named peers, and prints what was found: python -m peers.main STATE PG_BIN EXAMPLES PEER..."""

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .harness.report import Report
from .harness.server import Server
from .harness.site import Site


def run(site: Site, peer: str, report: Report) -> None:
    """One peer. What stops it is a row of the table: the next ones run all the same."""
    started = time.monotonic()
    print(f"\n== {peer}", flush=True)
    try:
        importlib.import_module(f".{peer}.scenarios", __package__).run(site, report)
    except Exception as error:
        traceback.print_exc()
        report.failed(peer, f"{type(error).__name__}: {error}")
    print(f"== {peer}: {time.monotonic() - started:.0f} s", flush=True)


def main(state: str, programs: str, examples: str, *peers: str) -> int:
    # An end by SIGTERM stops what was started, as an error does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    report, optional = Report(), os.environ.get("PEERS_OPTIONAL") == "1"
    directory = Path(tempfile.mkdtemp(prefix="run.", dir=Path(state) / "peers-runs"))
    server = Server(Path(programs), directory / "pg")
    try:
        for peer in peers:
            missing = Path(state) / "peers-runs" / f"missing.{peer}"
            if missing.exists():
                report.not_run(peer, missing.read_text().strip(), optional)
            else:
                run(Site(directory, Path(state), server, Path(examples)), peer, report)
    finally:
        server.stop()
    print(f"\n{report.table()}\n\n{len(report.rows)} rows, {report.wrong()} wrong")
    if report.wrong():
        print(f"The logs are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
