"""A pull worker: publishes commands to a JetStream stream, each once.

    pip install "psycopg[binary]" nats-py
    python nats_worker.py "host=... dbname=..." nats://127.0.0.1:4222 DESTINATION SUBJECT

Run as many as you like, kill them at any point: there is one message per command. The stream recognises a message that
it has (`Nats-Msg-Id`) for as long as its duplicate window, and the destination states that window:

    {"transport": "pull", "idempotency": {"mode": "key", "window": "2m", "margin": "20s"}}

Ends with 0 when nothing is due any more, with 1 when the connection to the stream is lost.
"""

import asyncio
import json
import sys

import nats
import psycopg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import NoStreamResponseError
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

LEASE = "10 s"


def claim(connection: psycopg.Connection, destination: str) -> list[dict]:
    """Takes some commands. A statement of its own: when it has returned, the attempt is durable."""
    return connection.execute(
        "SELECT * FROM command_ledger.claim(%s, 10, %s, worker => 'nats')", (destination, LEASE)
    ).fetchall()


async def publish(jetstream: JetStreamContext, subject: str, command: dict) -> PubAck:
    """One message. Its id is the destination key: the same in every attempt."""
    body = json.dumps(command["params"]).encode()
    return await jetstream.publish(subject, body, timeout=2, headers={"Nats-Msg-Id": command["destination_key"]})


def confirm(connection: psycopg.Connection, command: dict, ack: PubAck) -> None:
    """The stream has it: now, or since an earlier attempt (`duplicate`). Either way it is this place in the stream."""
    connection.execute(
        "SELECT command_ledger.confirm(%s, %s, %s, %s)",
        (
            command["idempotency_key"],
            command["lease_token"],
            f"{ack.stream}:{ack.seq}",
            Jsonb({"duplicate": bool(ack.duplicate)}),
        ),
    )


def give_up(connection: psycopg.Connection, command: dict, error: NatsError) -> None:
    """No stream listens: certainly not stored. Anything else is not known, and the ledger decides about a repeat."""
    key, token, what = command["idempotency_key"], command["lease_token"], type(error).__name__
    if isinstance(error, NoStreamResponseError):
        connection.execute("SELECT command_ledger.fail(%s, %s, 'not_sent', %s)", (key, token, what))
    else:
        connection.execute("SELECT command_ledger.uncertain(%s, %s, %s)", (key, token, what))


def release(connection: psycopg.Connection, command: dict) -> None:
    """Certainly not sent: due at once, for another worker."""
    connection.execute("SELECT command_ledger.release(%s, %s)", (command["idempotency_key"], command["lease_token"]))


async def work(conninfo: str, url: str, destination: str, subject: str) -> int:
    client = await nats.connect(url, allow_reconnect=False)
    with psycopg.connect(conninfo, autocommit=True, row_factory=dict_row) as connection:
        while not client.is_closed and (commands := claim(connection, destination)):
            for command in commands:
                if client.is_closed:
                    release(connection, command)
                    continue
                try:
                    ack = await publish(client.jetstream(), subject, command)
                except NatsError as error:
                    give_up(connection, command, error)
                else:
                    confirm(connection, command, ack)
    lost = client.is_closed
    await client.close()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(work(*sys.argv[1:])))
