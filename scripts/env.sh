#!/usr/bin/env bash
# Prints the environment that the scripts build with, for use by hand without rebuilding anything:
#   eval "$(scripts/env.sh)"
. "$(dirname "$0")/lib.sh"
bin=$(tree_bin "$PG_MAJOR" test)
cat <<END
export PATH="$STATE/tools/bin:\$PATH"
export CARGO_TARGET_DIR="$CARGO_TARGET_DIR"
export PGRX_HOME="$PGRX_HOME"
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1
export LEDGER_PG_BIN="$bin"
END
