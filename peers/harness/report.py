"""What was found, compared with what must be found."""

from dataclasses import dataclass, field

from .ledger import Seen


@dataclass
class Row:
    """One line of the table."""

    peer: str
    fault: str
    records: str
    ledger: str
    wrong: list[str] = field(default_factory=list)


class Report:
    """The rows of all peers, and whether every one is as it must be."""

    def __init__(self):
        self.rows: list[Row] = []

    def add(self, peer: str, fault: str, records, ledger="", wrong: list[str] | None = None) -> None:
        row = Row(peer, fault, str(records), str(ledger), wrong or [])
        self.rows.append(row)
        print(f"   {'ok  ' if not row.wrong else 'FAIL'} {peer}: {fault}: {row.records}; {row.ledger}", flush=True)
        for fault_found in row.wrong:
            print(f"        {fault_found}", flush=True)

    def compare(self, peer: str, fault: str, records: list, wanted_records: int, seen: Seen, wanted: str) -> None:
        """Holds the peer's records and the ledger against what they must be.

        `wanted` is the ledger's line: "confirmed, attempts 1: claim confirm". A confirmed command must name the one
        record that the peer has.
        """
        wrong = []
        if len(records) != wanted_records:
            wrong.append(f"{len(records)} records, wanted {wanted_records}: {records}")
        if str(seen) != wanted:
            wrong.append(f"the ledger says  {seen}\n        it must say      {wanted}")
        if not seen.journal_whole:
            wrong.append("verify_journal() is false")
        if seen.status == "confirmed" and records and seen.record_id != str(records[0]):
            wrong.append(f"confirmed with record {seen.record_id}, the peer has {records}")
        if seen.status in ("confirmed", "failed") and seen.maybe_sent:
            wrong.append(f"{seen.status} although it is not known")
        self.add(peer, fault, len(records), seen, wrong)

    def control(self, peer: str, fault: str, records: list, wanted: int) -> None:
        """What happens without the ledger: if nothing went wrong here, the scenarios above would prove nothing."""
        wrong = [] if len(records) == wanted else [f"{len(records)} records, wanted {wanted}: the fault did nothing"]
        self.add(peer, f"{fault}, without the ledger", len(records), "(control)", wrong)

    def failed(self, peer: str, why: str) -> None:
        self.add(peer, "(stopped)", "", "", [why])

    def not_run(self, peer: str, why: str, optional: bool) -> None:
        self.add(peer, "NOT RUN", "", why, [] if optional else ["it counts as a failure; PEERS_OPTIONAL=1 allows it"])

    def table(self) -> str:
        """peer | fault | records | ledger"""
        lines = [("peer", "fault", "records", "ledger")]
        for row in self.rows:
            lines.append((row.peer, row.fault, row.records, row.ledger + ("  <- WRONG" if row.wrong else "")))
        widths = [max(len(line[column]) for line in lines) for column in range(3)] + [0]
        padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
        return "\n".join(" | ".join(line) for line in padded)

    def wrong(self) -> int:
        return sum(bool(row.wrong) for row in self.rows)
