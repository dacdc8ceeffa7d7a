#!/usr/bin/env bash
# Shows that no table and no index grows without bound under a steady load with retention on.
#   ops/steady_load.sh [SECONDS [RATE]]      300 seconds at 100 commands per second, in a throwaway server
# Commands are registered, claimed and confirmed by pgbench, redacted after 5 s and forgotten after 20 s by the relay's
# maintenance. It prints sizes every 20 s, and fails if any table or index is larger in the last third of the run than in the
# third before, by a quarter and by half a megabyte.
. "$(dirname "$0")/../scripts/lib.sh"
cd "$ROOT"
seconds=${1:-300} rate=${2:-100}

bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints)
command -v "$bin/pgbench" >/dev/null || die "no pgbench in $bin"
work=$(mktemp -d "$STATE/steady.XXXXXX")
chmod 755 "$work"
is_root && chown "$(server_user)" "$work"
port=$((20000 + RANDOM % 20000))
run() { as_server "$bin/$1" "${@:2}"; }
sql() { run psql -X -q -A -t -h "$work" -p "$port" -U postgres -d "${database:-app}" -v ON_ERROR_STOP=1 "$@"; }
stop() {
  run pg_ctl -D "$work/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap stop EXIT

run initdb -D "$work/data" -U postgres -A trust -E UTF8 --locale=C >/dev/null
as_server tee -a "$work/data/postgresql.conf" >/dev/null <<END
shared_preload_libraries = 'command_ledger'
listen_addresses = ''
unix_socket_directories = '$work'
port = $port
autovacuum_naptime = 5s
checkpoint_timeout = 1min
END
run pg_ctl -D "$work/data" -w -l "$work/log" start >/dev/null
database=postgres sql -c 'CREATE DATABASE app'
sql <<'END'
CREATE EXTENSION command_ledger;
SELECT command_ledger.define_destination('desk', '{"transport": "pull", "limits": {"in_flight": 1000}}');
SELECT command_ledger.define_command_type('note', '{"destination": "desk", "retention": {"payload": "5s", "key": "20s"}}');
CREATE TABLE sample (at timestamptz DEFAULT now(), second int, relation text, bytes bigint);
CREATE SEQUENCE n;
END
as_server tee "$work/load.sql" >/dev/null <<'END'
SELECT command_ledger.register('note', 'n-' || nextval('n'), '{"text": "a note of some length, as they are"}');
SELECT command_ledger.confirm(idempotency_key, lease_token, 'N') FROM command_ledger.claim('desk', 20);
END
note "$rate commands per second for $seconds s"
run pgbench -n -h "$work" -p "$port" -U postgres -c 2 -R "$rate" -T "$seconds" -f "$work/load.sql" app >"$work/pgbench" 2>&1 &
load=$!

printf '%6s %9s %9s %9s %9s %9s %11s\n' second commands entries outbox dead total_kB largest_kB
for ((second = 20; second <= seconds; second += 20)); do
  sleep 20
  sql -c "INSERT INTO sample (second, relation, bytes) SELECT $second, c.relname, pg_relation_size(c.oid)
            FROM pg_class c WHERE c.relnamespace = 'command_ledger'::regnamespace AND c.relkind IN ('r', 'i', 't')"
  sql -F ' ' -c "SELECT format('%6s %9s %9s %9s %9s %9s %11s', $second,
           (SELECT count(*) FROM command_ledger.command), (SELECT count(*) FROM command_ledger.command_event),
           (SELECT count(*) FROM command_ledger.outbox),
           (SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE schemaname = 'command_ledger'),
           (SELECT sum(bytes)::bigint / 1024 FROM sample WHERE second = $second),
           (SELECT max(bytes) / 1024 FROM sample WHERE second = $second))"
done
wait "$load" || die "pgbench failed: $(tail -n 3 "$work/pgbench")"
grep -E 'transactions actually|latency average|tps' "$work/pgbench" || true

echo
sql -F ' ' -c "
  SELECT format('%-32s %10s kB before, %10s kB at the end', relation, before / 1024, at_the_end / 1024)
    FROM (SELECT relation, max(bytes) FILTER (WHERE second > $seconds / 3 AND second <= $seconds * 2 / 3) AS before,
                 max(bytes) FILTER (WHERE second > $seconds * 2 / 3) AS at_the_end FROM sample GROUP BY relation) x
   WHERE at_the_end > 16384 ORDER BY at_the_end DESC"
growing=$(sql -c "
  SELECT string_agg(relation, ', ')
    FROM (SELECT relation, max(bytes) FILTER (WHERE second > $seconds / 3 AND second <= $seconds * 2 / 3) AS before,
                 max(bytes) FILTER (WHERE second > $seconds * 2 / 3) AS at_the_end FROM sample GROUP BY relation) x
   WHERE at_the_end > before * 1.25 AND at_the_end > before + 524288")
[ -z "$growing" ] || die "still growing: $growing"
note "no table and no index went on growing in the last third"
