#!/usr/bin/env bash
# The long torture (docs/proof.md): a real cluster under faults from a seed, and a checker.
#   scripts/torture.sh SEED MINUTES     each may be empty: a random seed, an hour
. "$(dirname "$0")/lib.sh"

[ $# -le 2 ] || die "usage: scripts/torture.sh [SEED [MINUTES]]"
seed=${1:-$RANDOM}
minutes=${2:-60}
bin=$("$ROOT/scripts/install_tree.sh" "$PG_MAJOR" test dev failpoints)
cd "$ROOT"
# A failure keeps the cluster.
LEDGER_PG_BIN=$bin LEDGER_KEEP=1 cargo run -p pg_test --bin torture -- "$seed" "$minutes"
