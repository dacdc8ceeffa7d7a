#!/usr/bin/env bash
# Shows that the relay's memory does not grow with what it delivers.
#   bench/relay_memory.sh [DELIVERIES]     default 100000; a test build, some minutes
. "$(dirname "$0")/../scripts/lib.sh"

cd "$ROOT"
bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints | tail -1)
LEDGER_PG_BIN=$bin cargo run -q -p pg_test --example relay_memory -- "${1:-100000}"
