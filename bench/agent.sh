#!/usr/bin/env bash
# An agent that makes the call itself, through psycopg, beside agent-ledger from PyPI where it can be installed.
. "$(dirname "$0")/lib.sh"
server_ready
if python=$(bench_python peer); then
  BENCH_PYTHON=$python part agent peer
elif python=$(bench_python driver); then
  note "agent-ledger could not be installed: the extension alone"
  BENCH_PYTHON=$python part agent
else
  note "left out: no psycopg"
fi
