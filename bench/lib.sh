# shellcheck shell=bash
# Shared by the bench: one private server with the same settings for everything that is measured on it.
# Source it, do not run it. What can be set from the environment:
#   QUICK=1                  a look, not a measurement: one round of short cells, small tables
#   FULL=1                   growth up to 10,000,000 finished commands
#   BENCH_PARTS='cells …'    only these parts of: cells relay latency growth snapshot agent views
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

export QUICK=${QUICK:-} FULL=${FULL:-}
export BENCH_DIR=$STATE/bench
export BENCH_BIN BENCH_RECORDS=$BENCH_DIR/records.jsonl
BENCH_BIN=$(tree_bin "$PG_MAJOR" bench)
DATA=$BENCH_DIR/data

# The settings of the measured server. pg_stat_wal and the function statistics of the snapshot part are asked for where
# they are needed, not here.
server_settings() {
  cat <<END
port = $BENCH_PORT
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
shared_preload_libraries = 'command_ledger'
shared_buffers = 1GB
max_wal_size = 4GB
checkpoint_timeout = 15min
fsync = on
synchronous_commit = on
full_page_writes = on
max_connections = 100
max_worker_processes = 16
log_checkpoints = off
log_min_messages = warning
lc_messages = C
timezone = UTC
END
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Sets BENCH_PORT from what the running or stopped server was given.
server_port() {
  [ -s "$BENCH_DIR/port" ] || return 1
  BENCH_PORT=$(cat "$BENCH_DIR/port")
  export BENCH_PORT
}

server_is_up() { server_port && as_server "$BENCH_BIN/pg_ctl" -D "$DATA" status >/dev/null 2>&1; }

server_start() {
  # A relay has a socket for each call under way; runuser starts with the customary limit of 1,024.
  # shellcheck disable=SC2016 # the inner shell expands it
  as_server bash -c 'ulimit -Sn "$(ulimit -Hn)" 2>/dev/null; exec "$@"' start \
    "$BENCH_BIN/pg_ctl" -D "$DATA" -w -t 120 -l "$DATA/server.log" start >/dev/null 2>&1 ||
    die "the server does not start: $(tail -n 5 "$DATA/server.log" 2>/dev/null)"
}

# A new, empty server.
server_create() {
  server_stop
  mkdir -p "$BENCH_DIR"
  chmod a+rx "$BENCH_DIR"
  rm -rf "$DATA"
  mkdir -p "$DATA"
  chmod 700 "$DATA"
  ! is_root || chown postgres: "$DATA"
  BENCH_PORT=$(free_port)
  export BENCH_PORT
  echo "$BENCH_PORT" >"$BENCH_DIR/port"
  as_server "$BENCH_BIN/initdb" -D "$DATA" -U postgres -A trust -E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
  server_settings | as_server tee -a "$DATA/postgresql.conf" >/dev/null
  server_start
}

server_stop() {
  [ -s "$DATA/postmaster.pid" ] || return 0
  as_server "$BENCH_BIN/pg_ctl" -D "$DATA" -m fast -w -t 120 stop >/dev/null 2>&1 ||
    as_server "$BENCH_BIN/pg_ctl" -D "$DATA" -m immediate -w -t 60 stop >/dev/null 2>&1 || true
}

# For a part that is run by itself: the server that is there, or a new one.
server_ready() {
  [ -x "$BENCH_BIN/postgres" ] || die "no release build in $BENCH_BIN: run 'make bench' once, or scripts/install_tree.sh $PG_MAJOR bench release"
  if server_port && [ -d "$DATA" ]; then
    server_is_up || server_start
  else
    server_create
  fi
}

# part NAME: one of the Python programs beside this file.
part() {
  local name=$1
  shift
  PYTHONDONTWRITEBYTECODE=1 "${BENCH_PYTHON:-python3}" "$ROOT/bench/$name.py" "$@"
}

# bench_python driver|peer: a Python with psycopg, or with agent-ledger too; fails where neither can be installed.
bench_python() {
  local packages=('psycopg[binary,pool]==3.2.13') bin
  [ "$1" != peer ] || packages+=('agent-ledger[postgres]==0.2.1')
  bin=$("$ROOT/scripts/python.sh" "${packages[@]}") || return 1
  echo "$bin/python"
}
