#!/usr/bin/env bash
# Builds the extension and installs it into a private PostgreSQL tree.
#   scripts/install_tree.sh MAJOR NAME PROFILE [FEATURE...]      e.g. 15 test dev failpoints
# The last line printed is the tree's bin directory (initdb, pg_ctl, psql).
. "$(dirname "$0")/lib.sh"

[ $# -ge 3 ] || die "usage: scripts/install_tree.sh MAJOR NAME PROFILE [FEATURE...]"
major=$1 name=$2 profile=$3
shift 3

build_for "$major"
bin=$(private_tree "$major" "$name")

cd "$ROOT"
[ "$profile" != dev ] || share_test_dependencies
extension=$("$bin/pg_config" --sharedir)/extension
# What an earlier version left would be linted and tested.
rm -f "$extension"/command_ledger--*.sql
cargo pgrx install --pg-config "$bin/pg_config" --profile "$profile" \
  --no-default-features --features "pg$major $*" >&2
# Only private trees get these: the suite creates older versions and updates them.
cp sql/frozen/command_ledger--*.sql "$extension/"
echo "$bin"
