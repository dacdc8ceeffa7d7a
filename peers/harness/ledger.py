"""The ledger of one database, as an application sees it."""

import json
from dataclasses import dataclass

import psycopg
from psycopg.types.json import Jsonb

from .processes import eventually

#: No step is left for the relay: final, or a question for a person.
RESTS = """
SELECT s.status IN ('confirmed', 'failed', 'cancelled')
    OR (s.status = 'needs_reconciliation' AND NOT EXISTS (SELECT FROM command_ledger.reconciliation_case c
          WHERE c.idempotency_key = s.idempotency_key AND c.closed_at IS NULL AND c.next_lookup_at IS NOT NULL))
  FROM command_ledger.status(%s) s
"""
SEEN = """
SELECT s.status::text, s.attempt, s.destination_record_id, s.error::text, s.maybe_sent,
       (SELECT string_agg(t.kind, ' ' ORDER BY t.seq) FROM command_ledger.timeline t
         WHERE t.idempotency_key = s.idempotency_key AND t.seq > 0),
       command_ledger.verify_journal(s.idempotency_key)
  FROM command_ledger.status(%s) s
"""


@dataclass
class Seen:
    """What the ledger says of one command."""

    status: str
    attempts: int
    record_id: str | None
    error: str | None
    maybe_sent: bool
    journal: str
    journal_whole: bool

    def __str__(self) -> str:
        error = f" ({self.error})" if self.error else ""
        chain = "" if self.journal_whole else ", JOURNAL BROKEN"
        return f"{self.status}{error}, attempts {self.attempts}: {self.journal}{chain}"


class Ledger:
    """Every statement with a session of its own: the server may have been killed since the last one."""

    def __init__(self, conninfo: str):
        self.conninfo = conninfo

    def rows(self, sql: str, *values) -> list:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, *values):
        return self.rows(sql, *values)[0][0]

    def define(self, destination: str, config: dict, command_type: str, policy: dict) -> None:
        self.rows("SELECT command_ledger.define_destination(%s, %s)", destination, Jsonb(config))
        retry = {"base": "100ms", "cap": "500ms", **policy.pop("retry", {})}
        policy = {**policy, "destination": destination, "retry": retry}
        self.rows("SELECT command_ledger.define_command_type(%s, %s)", command_type, Jsonb(policy))

    def register(self, command_type: str, key: str, params: dict) -> str:
        """What the registration did: created or replayed."""
        return self.one(
            "SELECT outcome FROM command_ledger.register(%s, %s, %s::text::jsonb)",
            command_type,
            key,
            json.dumps(params),
        )

    def status(self, key: str) -> str:
        return self.one("SELECT status::text FROM command_ledger.status(%s)", key)

    def at_rest(self, key: str) -> Seen:
        """Waits until nothing more happens to the command by itself; what is known then."""
        eventually(f"{key} comes to rest", lambda: self.one(RESTS, key), 90)
        return self.seen(key)

    def seen(self, key: str) -> Seen:
        return Seen(*self.rows(SEEN, key)[0])
