#!/usr/bin/env bash
# The SQL of released versions, which installations have run: never edited, see docs/upgrade.md.
#   scripts/frozen.sh                 checks sql/frozen against its SHA256SUMS
#   scripts/frozen.sh --check DIR     checks another directory
#   scripts/frozen.sh --freeze        adds the script of the version that Cargo.toml names (on release)
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

check() (
  cd "$1"
  sha256sum --check --strict --quiet SHA256SUMS || die "a released script was edited: put it back; changes go into an update script"
  local file
  for file in *.sql; do
    grep -qF "  $file" SHA256SUMS || die "$file stands in no SHA256SUMS"
  done
)

freeze() {
  local version file bin
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
  file=command_ledger--$version.sql
  [ ! -e "sql/frozen/$file" ] || die "$version is frozen already: raise the version first"
  bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints)
  mkdir -p sql/frozen
  install -m 644 "$("$bin/pg_config" --sharedir)/extension/$file" "sql/frozen/$file"
  (cd sql/frozen && sha256sum -- *.sql >SHA256SUMS)
  note "sql/frozen/$file"
}

case ${1:-} in
"") check sql/frozen ;;
--check) check "${2:?usage: scripts/frozen.sh --check DIR}" ;;
--freeze) freeze ;;
*) die "usage: scripts/frozen.sh [--check DIR | --freeze]" ;;
esac
