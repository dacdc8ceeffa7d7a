#!/usr/bin/env bash
# Builds the extension (release) against a given server and installs it there.
#   scripts/install.sh PG_CONFIG
. "$(dirname "$0")/lib.sh"

pg_config=${1:-}
[ -n "$pg_config" ] || die "say which server: make install PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config"
pg_config=$(command -v "$pg_config") || die "no such program: $1"
major=$("$pg_config" --version | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p')
case $major in
15 | 16 | 17 | 18) ;;
*) die "$("$pg_config" --version) is not supported: 15 to 18 are" ;;
esac
[ -e "$("$pg_config" --includedir-server)/postgres.h" ] ||
  die "the server headers are not installed ($("$pg_config" --includedir-server)/postgres.h): on Debian, postgresql-server-dev-$major"

cd "$ROOT"
scripts/bootstrap.sh --tools-only
# The bindings are made from the headers of exactly this server.
export PGRX_PG_CONFIG_PATH=$pg_config
sudo=()
[ -w "$("$pg_config" --pkglibdir)" ] || sudo=(--sudo)
step "Installing into PostgreSQL $major ($pg_config)" \
  cargo pgrx install --release --pg-config "$pg_config" --no-default-features --features "pg$major" ${sudo[@]+"${sudo[@]}"}
cat <<'END'

Next: set shared_preload_libraries = 'command_ledger' in postgresql.conf, restart the server, and
  CREATE EXTENSION command_ledger;
END
