#!/usr/bin/env bash
# Writes docs/reference.md from the catalog of a throwaway ledger, built from this tree.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints)
LEDGER_PG_BIN=$bin LEDGER_WRITE_REFERENCE=1 cargo test -q -p pg_test --test reference
note "docs/reference.md"
