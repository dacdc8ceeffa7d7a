"""Registers a purchase requisition with the business row, commits, and waits for the receipt.

    pip install "psycopg[binary]"
    python requisition.py "host=... dbname=..." NUMBER MATERIAL QUANTITY

Run it as often as you like with the same arguments, kill it at any point and run it again: there is one requisition.
Ends with 0 when it is confirmed, 2 for a conflict, 3 while the outcome is not known.
"""

import sys

import psycopg
from psycopg.types.json import Jsonb

#: The key was used before for other parameters: a defect of the caller, never a reason for another key.
CONFLICT = "CL001"


def order(connection: psycopg.Connection, number: str, material: str, quantity: int) -> str:
    """Writes the business row and the intent together, or neither; answers what the registration did."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO requisition (number, material, quantity) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (number, material, quantity),
        )
        # The key names the intent, the same in every try: from the order's number, never from a clock or a counter.
        row = connection.execute(
            "SELECT outcome FROM command_ledger.register('create_requisition', %s, %s)",
            (f"requisition-{number}", Jsonb({"material": material, "quantity": quantity})),
        ).fetchone()
    return row[0]


def receipt(connection: psycopg.Connection, number: str) -> tuple[str, str | None, bool]:
    """What is known after at most 30 seconds. Outside of any transaction: the relay sends what is committed."""
    return connection.execute(
        "SELECT status, destination_record_id, maybe_sent FROM command_ledger.wait_for(%s, '30 s')",
        (f"requisition-{number}",),
    ).fetchone()


def main(conninfo: str, number: str, material: str, quantity: str) -> int:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        try:
            outcome = order(connection, number, material, int(quantity))
        except psycopg.Error as error:
            if error.sqlstate != CONFLICT:
                raise
            print(f"conflict {error.diag.message_primary}")
            return 2
        status, record_id, maybe_sent = receipt(connection, number)
        print(outcome, status, record_id)
        if status == "confirmed":
            return 0
        if status == "needs_reconciliation" or maybe_sent:
            # Not known. Leave it to the ledger and to people; ask again later, with the same key.
            return 3
        return 3 if status in ("planned", "approved", "dispatched") else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
