#!/usr/bin/env bash
# Security lint of the SQL that CREATE EXTENSION and ALTER EXTENSION UPDATE run.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints)
tools=$(scripts/python.sh "pgspot==$PGSPOT_VERSION")
sql=$("$bin/pg_config" --sharedir)/extension
for file in "$sql"/command_ledger--*.sql; do
  note "${file##*/}"
  case ${file##*/} in
  # An update replaces views, so that what was granted on them stays (PS015). The server refuses to replace an object
  # that is not the extension's own.
  command_ledger--*--*.sql) "$tools/pgspot" --ignore PS015 "$file" ;;
  *) "$tools/pgspot" "$file" ;;
  esac
done
