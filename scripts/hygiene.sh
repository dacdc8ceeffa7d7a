#!/usr/bin/env bash
# Looks for what ordinary builds do not show: the black-box suite on a server with assertions, whose logs must be clean,
# and the pure crates under AddressSanitizer.
#   scripts/hygiene.sh [assert [TEST...] | sanitize]      nothing: both
# The server's source comes from apt-get source, or from HYGIENE_SOURCE=/path/to/postgresql-15.N.tar.bz2.
. "$(dirname "$0")/lib.sh"

HOME_OF_IT=$STATE/hygiene
PREFIX=$HOME_OF_IT/pg$PG_MAJOR-assert
# What the server says about resources that somebody forgot, memory that somebody wrote past, or an assertion.
COMPLAINTS='TRAP:|PANIC:|reference leak|refcount leak|still (active|referenced)|snapshots? .*remain|don.t own a lock|ResourceOwner|past chunk end|problem in alloc set|File leak|leaked'
# The files that use the server's tables, locks and processes most.
TESTS=(main_job register identity states pull many room late lanes together locks approve reconcile crash steps fences
  elsewhere dumps cluster retention replicas visibility poison limits secrets cancels memory)

fetch_source() {
  local apt=$HOME_OF_IT/apt options version
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$HOME_OF_IT/src"
  if [ -n "${HYGIENE_SOURCE:-}" ]; then
    tar -xf "$HYGIENE_SOURCE" -C "$HOME_OF_IT/src" --strip-components=1
    return
  fi
  sed -n 's/^Types: deb$/Types: deb-src/p; /^Types:/!p' /etc/apt/sources.list.d/debian.sources >"$apt/debian.sources"
  mkdir -p "$apt/parts"
  mv "$apt/debian.sources" "$apt/parts/"
  options=(-o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -qq update
  # A mirror may have dropped the newest one already, and keep the one before.
  for version in $(apt-cache "${options[@]}" showsrc "postgresql-$PG_MAJOR" | sed -n 's/^Version: //p' | sort -rV); do
    ! (cd "$apt" && apt-get "${options[@]}" -qq source --download-only "postgresql-$PG_MAJOR=$version") || break
  done
  tar -xf "$apt"/postgresql-"$PG_MAJOR"_*.orig.tar.bz2 -C "$HOME_OF_IT/src" --strip-components=1
}

# With client requests for valgrind: they cost nothing outside of it.
build_server() {
  [ ! -x "$PREFIX/bin/postgres" ] || return 0
  fetch_source
  local flags=() log=$STATE/log/hygiene-build.log
  [ ! -f /usr/include/valgrind/valgrind.h ] || flags=(CPPFLAGS=-DUSE_VALGRIND)
  (
    cd "$HOME_OF_IT/src"
    ./configure --prefix="$PREFIX" --enable-cassert --enable-debug --without-icu --with-openssl \
      CFLAGS='-O1 -g -fno-omit-frame-pointer' "${flags[@]}"
    make -s -j "$(nproc)" && make -s install && make -s -C contrib/amcheck install
  ) >"$log" 2>&1 || die "the server does not build: see $log"
}

install_extension() {
  export PGRX_HOME=$STATE/pgrx-assert
  if ! grep -qsF "$PREFIX/bin/pg_config" "$PGRX_HOME/config.toml"; then
    mkdir -p "$PGRX_HOME"
    cargo pgrx init --no-run "--pg$PG_MAJOR" "$PREFIX/bin/pg_config" >"$STATE/log/pgrx-init.log" 2>&1
  fi
  share_test_dependencies
  cargo pgrx install --pg-config "$PREFIX/bin/pg_config" --profile dev --no-default-features \
    --features "pg$PG_MAJOR failpoints" >&2
  cp sql/frozen/command_ledger--*.sql "$("$PREFIX/bin/pg_config" --sharedir)/extension/"
}

# The harness removes its clusters: a second name keeps each log.
keep_logs() {
  local log
  while sleep 0.5; do
    for log in "$TMPDIR"/ledger_*/log; do
      [ ! -f "$log" ] || ln "$log" "$1/$(stat -c %i "$log")" 2>/dev/null || true
    done
  done
}

on_assertions() {
  local logs tests=() name watcher failed=0
  build_server
  install_extension
  TMPDIR=$(mktemp -d "$HOME_OF_IT/t.XXXX") logs=$(mktemp -d "$HOME_OF_IT/logs.XXXX")
  export TMPDIR
  chmod a+rx "$STATE" "$HOME_OF_IT" && chmod 1777 "$TMPDIR"
  for name in "$@"; do tests+=(--test "$name"); done
  keep_logs "$logs" &
  watcher=$!
  LEDGER_PG_BIN=$PREFIX/bin cargo test --no-fail-fast -p pg_test "${tests[@]}" || failed=1
  kill "$watcher"
  wait "$watcher" 2>/dev/null || true
  note "$(find "$logs" -type f | wc -l) server logs in $logs"
  ! grep -rhE "$COMPLAINTS" "$logs" || die "the server complains"
  return "$failed"
}

# The sanitizer is a part of every toolchain; only the switch is not stable.
sanitized() {
  RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$HOME_OF_IT/asan \
    cargo test --target x86_64-unknown-linux-gnu -p command_ledger_domain -p command_ledger_wire
}

cd "$ROOT"
mkdir -p "$STATE/log" "$HOME_OF_IT"
what=${1:-both}
[ $# -eq 0 ] || shift
[ $# -eq 0 ] || TESTS=("$@")
case $what in
assert | both) step "Black-box tests on a server with assertions" on_assertions "${TESTS[@]}" ;;&
sanitize | both) step "Pure crates under AddressSanitizer" sanitized ;;
assert) ;;
*) die "usage: scripts/hygiene.sh [assert [TEST...] | sanitize]" ;;
esac
