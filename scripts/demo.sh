#!/usr/bin/env bash
# The demo: the extension as it is released, in a private server.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

scripts/bootstrap.sh
install_release() { scripts/install_tree.sh "$PG_MAJOR" release release >/dev/null; }
build_demo() { cargo build -p pg_test --bins; }
step "Building the extension (release) into a private PostgreSQL $PG_MAJOR" install_release
step "Building the demo program" build_demo
echo
LEDGER_PG_BIN=$(tree_bin "$PG_MAJOR" release) exec "$CARGO_TARGET_DIR/debug/demo" "$@"
