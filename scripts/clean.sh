#!/usr/bin/env bash
# Removes what was built in this checkout; with --state also the private servers, tools and test clusters.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
rm -rf "$CARGO_TARGET_DIR" dist
if [ "${1:-}" = --state ]; then
  case $STATE in
  */command_ledger-*) as_admin rm -rf "$STATE" ;;
  *) die "LEDGER_STATE=$STATE was chosen by you and may hold more than ours: remove it yourself" ;;
  esac
fi
