#!/usr/bin/env bash
# How long a claim takes while somebody holds an old snapshot and the queue turns over.
#   HOLD=120 RATE=500 bench/snapshot.sh      seconds held, cycles per second
. "$(dirname "$0")/lib.sh"
server_ready
if BENCH_PYTHON=$(bench_python driver) && export BENCH_PYTHON; then
  part snapshot
else
  note "left out: no psycopg"
fi
