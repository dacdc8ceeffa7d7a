"""The ways in which an answer is lost after the write, for every peer that is reached over HTTP, and a lost request."""

from collections.abc import Callable
from dataclasses import dataclass

from .ledger import Ledger
from .processes import Failed
from .proxy import Proxy
from .report import Report
from .server import Server

#: Fault of the proxy, by the name of the scenario. In the last one the ledger's server dies while it waits.
FAULTS = {
    "no fault": None,
    "request lost": "lost",
    "answer dropped": "drop",
    "502 by the proxy": "bad_gateway",
    "no answer in time": "hang",
    "ledger killed (-9) before the answer": "hang",
}
CRASH = "ledger killed (-9) before the answer"


@dataclass
class Peer:
    """How to have one record made through the ledger, and how to count what is there."""

    name: str
    server: Server
    ledger: Ledger
    proxy: Proxy
    command_type: str
    #: The command's parameters, from its key.
    params: Callable[[str], dict]
    #: What only the request that writes contains.
    write: str
    #: The ids of the peer's records of this key, asked for without the proxy.
    records: Callable[[str], list]


def deliver(peer: Peer, key: str, scenario: str, params: dict | None = None):
    """Registers, lets the answer be lost, and waits until nothing moves any more."""
    fault = FAULTS[scenario]
    lost = len(peer.proxy.seen())
    if fault:
        peer.proxy.next(fault, peer.write)
    peer.ledger.register(peer.command_type, key, params or peer.params(key))
    if fault:
        answer = peer.proxy.wait_seen(lost + 1)[-1]
        if scenario == CRASH:
            if (status := peer.ledger.status(key)) != "dispatched":
                raise Failed(f"{key} is {status} before the crash")
            peer.server.crash_and_restart()
        if fault != "lost" and not 200 <= answer["status"] < 300:
            raise Failed(f"the answer that was lost was no success: {answer['status']}")
    return peer.ledger.at_rest(key)


def under_every_fault(peer: Peer, report: Report, wanted: dict[str, str]) -> None:
    """One record each; `wanted` is the ledger's line by the name of the scenario."""
    for number, scenario in enumerate(FAULTS):
        key = f"{peer.name}-{number}"
        seen = deliver(peer, key, scenario)
        report.compare(peer.name, scenario, peer.records(key), 1, seen, wanted[scenario])
        # The same intent again, as after a crash of the caller: a replay, and nothing is sent.
        outcome = peer.ledger.register(peer.command_type, key, peer.params(key))
        if outcome != "replayed" or len(peer.records(key)) != 1:
            report.failed(peer.name, f"{scenario}: a repeat was {outcome}, {len(peer.records(key))} records")
