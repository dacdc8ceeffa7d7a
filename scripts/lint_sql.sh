#!/usr/bin/env bash
# Security lint of the SQL that CREATE EXTENSION and ALTER EXTENSION UPDATE run.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints)
tools=$(scripts/python.sh "pgspot==$PGSPOT_VERSION")
sql=$("$bin/pg_config" --sharedir)/extension
for file in "$sql"/command_ledger--*.sql; do
  note "${file##*/}"
  "$tools/pgspot" "$file"
done
