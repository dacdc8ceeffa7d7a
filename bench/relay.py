"""The relay's throughput: commands wait in a paused destination; the clock runs from resume() until all are settled.

What the sink saw is counted from its own log and compared with the attempts that the ledger recorded.
"""

import json
import os
import signal
import subprocess
import sys
import time

from measure import HERE, PARAMS, QUICK, Budget, Server, children, memory_kb, record, say, setting, wait_until_quiet
from sink import Sink

LIMIT_S = 300


def define(server, name, port, in_flight):
    destination = {
        "transport": "http",
        "request": {"url": f"http://127.0.0.1:{port}/"},
        "idempotency": {"mode": "key", "window": "unlimited"},
        "success": {"record_id": "$.id"},
        "limits": {"in_flight": in_flight, "retries_in_flight": in_flight},
    }
    policy = {"retry": {"base": "20ms", "cap": "200ms", "max_attempts": 20}}
    server.sql(
        f"SELECT command_ledger.define_destination('{name}', $${json.dumps(destination)}$$)",
        f"SELECT command_ledger.define_command_type('{name}', bench.policy('{name}', $${json.dumps(policy)}$$))")


def kill_server(server):
    """kill -9 of the postmaster and of all its processes, and a start that recovers."""
    master = server.postmaster()
    for pid in [master, *children(master)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{master}") and time.monotonic() < end:
        time.sleep(0.05)
    subprocess.run(["bash", "-c", f'. "{HERE}/lib.sh"; server_ready'], check=True)


def deliver(server, sink, name, prefix, commands, kill, budget):
    """Queues, resumes, waits, counts."""
    port = "unlucky" if name == "unlucky" else "clean"
    server.sql(f"SELECT command_ledger.pause('{name}')")
    queueing = time.monotonic()
    server.sql(f"SELECT count(command_ledger.register('{name}', '{prefix}-' || lpad(i::text, 8, '0'), $${PARAMS}$$)) "
               f"FROM generate_series(1, {commands}) i")
    queueing = time.monotonic() - queueing
    server.sql("VACUUM ANALYZE command_ledger.outbox", "VACUUM ANALYZE command_ledger.command", "CHECKPOINT")
    server.wait_for_relay()
    wait_until_quiet(budget)
    left = f"SELECT count(*) FROM command_ledger.outbox WHERE destination = '{name}'"
    started, killed_at = time.monotonic(), None
    server.sql(f"SELECT command_ledger.resume('{name}')")
    while (waiting := server.number(left)) > 0:
        now = time.monotonic() - started
        if now > LIMIT_S:
            break
        if kill and killed_at is None and waiting < commands * 2 / 3:
            kill_server(server)
            killed_at = round(now, 2)
        time.sleep(0.02)
    took = time.monotonic() - started
    relay = server.wait_for_relay()
    memory = memory_kb(relay), memory_kb(relay, "VmRSS")
    seen, resets = sink.requests(port, prefix + "-")
    rows = server.psql("-c", "SELECT idempotency_key, status, attempt FROM command_ledger.command "
                             f"WHERE command_type = '{name}' AND idempotency_key LIKE '{prefix}-%'").split("\n")
    attempts = {}
    confirmed = 0
    for row in rows:
        key, status, attempt = row.split("|")
        attempts[key] = int(attempt)
        confirmed += status == "confirmed"
    unrecorded = sum(1 for key, n in seen.items() if n > attempts.get(key, 0))
    unsent = sum(max(0, n - seen.get(key, 0)) for key, n in attempts.items())
    result = {
        "commands": commands, "seconds": round(took, 3), "per_s": round(commands / took, 1), "confirmed": confirmed,
        "requests": sum(seen.values()), "attempts": sum(attempts.values()), "resets": resets,
        "keys_seen_more_than_attempted": unrecorded, "attempts_never_seen": unsent, "killed_at_s": killed_at,
        "registered_per_s": round(commands / queueing, 1), "relay_anon_kb": memory[0], "relay_rss_kb": memory[1],
    }  # fmt: skip
    say(f"   {name + (' killed' if kill else ''):16} {result['per_s']:8,.0f}/s  {confirmed}/{commands} confirmed, "
        f"{result['requests']} requests for {result['attempts']} attempts, relay {memory[0] // 1024} MB")
    return result


def main():
    server = Server("bench_relay")
    server.create("ledger.sql")
    commands, in_flight = setting("DELIVERIES", 3_000, 20_000), setting("IN_FLIGHT", 256, 256)
    batch = setting("RELAY_BATCH", 1_000, 1_000)
    server.sql(f"ALTER SYSTEM SET command_ledger.relay_batch = {batch}", "SELECT pg_reload_conf()")
    budget = Budget(setting("PATIENCE", 5, 30))
    sink = Sink()
    try:
        for name in sink.ports:
            define(server, name, sink.ports[name], in_flight)
        runs = [("clean", False, turn) for turn in range(setting("RELAY_ROUNDS", 1, 3))]
        runs += [("unlucky", False, 0), ("unlucky", True, 1)]
        if not QUICK:
            runs += [("unlucky", True, 2)]
        for name, kill, turn in runs:
            prefix = f"{name}{'-kill' if kill else ''}-{turn}"
            result = deliver(server, sink, name, prefix, commands, kill, budget)
            record("relay", name=name, killed=kill, turn=turn, in_flight=in_flight, batch=batch, **result)
            if result["confirmed"] < commands:
                say(server.psql("-c", "SELECT check_name, detail FROM command_ledger.health() WHERE NOT ok"))
    finally:
        sink.stop()
        server.sql("ALTER SYSTEM RESET command_ledger.relay_batch", "SELECT pg_reload_conf()")
    plain = plain_backend_kb(server)
    record("relay_memory", relay_anon_kb=memory_kb(server.wait_for_relay()), plain_anon_kb=plain)


def plain_backend_kb(server):
    """The memory of a session that has done nothing but one query."""
    command = [os.path.join(server.bin, "psql"), "-XAtq"]
    session = subprocess.Popen(command, env=server.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    session.stdin.write("SELECT pg_backend_pid();\n")
    session.stdin.flush()
    used = memory_kb(int(session.stdout.readline()))
    session.stdin.close()
    session.wait()
    return used


if __name__ == "__main__":
    sys.exit(main())
