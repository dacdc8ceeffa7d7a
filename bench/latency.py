"""From the commit of one registration to the first byte at the destination, the relay being idle before each.

Both clocks are CLOCK_MONOTONIC of one machine: the session's when it sends COMMIT and when that has returned, the
destination's when the first bytes of the request have arrived.
"""

import json
import multiprocessing
import random
import select
import socket
import time

import psycopg

from measure import PARAMS, Server, memory_kb, percentile, record, say, setting

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"id":"1"}'


def stamp(listener, stamps):
    """A destination that does nothing but note when a request begins."""
    connections, pending = {}, b""
    while True:
        for ready in select.select([listener, *connections], [], [])[0]:
            now = time.monotonic_ns()
            if ready is listener:
                connection = listener.accept()[0]
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection] = b""
                continue
            data = ready.recv(65536)
            if not data:
                ready.close()
                del connections[ready]
                continue
            if not connections[ready]:
                stamps.send(now)
            pending = connections[ready] + data
            head, found, body = pending.partition(b"\r\n\r\n")
            length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                           if line.startswith(b"content-length:")), 0)  # fmt: skip
            if found and len(body) >= length:
                ready.sendall(ANSWER)
                pending = b""
            connections[ready] = pending


def wakeups(pid):
    """How often a process went to sleep."""
    with open(f"/proc/{pid}/task/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))


def spread(values):
    ordered = sorted(values)
    return {f"p{int(share * 100)}_ms": round(percentile(ordered, share) / 1e6, 3) for share in (0.5, 0.95, 0.99)}


def main():
    server = Server("bench_latency")
    server.create("ledger.sql")
    listener = socket.create_server(("127.0.0.1", 0))
    ours, theirs = multiprocessing.Pipe(duplex=False)
    sink = multiprocessing.Process(target=stamp, args=(listener, theirs), daemon=True)
    sink.start()
    destination = {
        "transport": "http", "request": {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"},
        "success": {"record_id": "$.id"},
    }  # fmt: skip
    server.sql(
        f"SELECT command_ledger.define_destination('stamp', $${json.dumps(destination)}$$)",
        "SELECT command_ledger.define_command_type('stamp', bench.policy('stamp'))")
    relay = server.wait_for_relay()
    asked, answered = [], []
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        for i in range(setting("SINGLES", 60, 300) + 10):
            session.execute("BEGIN")
            session.execute("SELECT command_ledger.register('stamp', %s, %s)", (f"single-{i:06}", PARAMS))
            before = time.monotonic_ns()
            session.execute("COMMIT")
            after = time.monotonic_ns()
            if not ours.poll(30):
                raise SystemExit("error: nothing arrived at the destination within 30 s")
            arrived = ours.recv()
            if i >= 10:  # the first ones warm up
                asked.append(arrived - before)
                answered.append(max(0, arrived - after))
            waited = time.monotonic() + 10
            while session.execute("SELECT EXISTS (SELECT FROM command_ledger.outbox)").fetchone()[0]:
                if time.monotonic() > waited:
                    raise SystemExit("error: a command was not settled within 10 s")
                time.sleep(0.001)
            time.sleep(random.uniform(0.005, 0.02))
    idle_s = setting("IDLE", 3, 10)
    time.sleep(0.5)
    woken = wakeups(relay)
    time.sleep(idle_s)
    woken = wakeups(relay) - woken
    sink.terminate()
    from_commit, after_commit = spread(asked), spread(answered)
    record("latency", singles=len(asked), from_commit_sent=from_commit, after_commit_returned=after_commit, idle_s=idle_s,
           idle_wakeups=woken, relay_anon_kb=memory_kb(relay),
           all_us=sorted(round(x / 1000) for x in asked))  # fmt: skip
    say(f"   from COMMIT sent to first byte: p50 {from_commit['p50_ms']} ms, p99 {from_commit['p99_ms']} ms; "
        f"from COMMIT returned: p50 {after_commit['p50_ms']} ms; {woken} wake-ups in {idle_s} idle seconds")


if __name__ == "__main__":
    main()
