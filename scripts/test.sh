#!/usr/bin/env bash
# Runs test suites one after the other and stops at the first that fails.
#   scripts/test.sh SUITE...      lint, pure, db, blackbox; on another major: db-18, blackbox-18, smoke-18, package-18 (or 16), compile-17
# Its last line is the total over all of them: "N passed, N failed".
. "$(dirname "$0")/lib.sh"

[ $# -gt 0 ] || die "usage: scripts/test.sh SUITE... (lint, pure, db, blackbox, db-18, blackbox-18, smoke-18, package-15, and the same with 16)"
mkdir -p "$STATE/log"

# The private trees are shared by all checkouts that use this state directory: one run at a time. The lock is not
# inherited by what the tests start, so that a stray process cannot keep it.
if [ -z "${LEDGER_LOCKED:-}" ]; then
  exec 9>"$STATE/lock"
  flock -n 9 || { note "another run uses $STATE: waiting for it (LEDGER_STATE=DIR gives this one its own)" && flock 9; }
  LEDGER_LOCKED=1 "$0" "$@" 9>&-
  exit
fi

cd "$ROOT"
tests_expected=
results=$(mktemp "$STATE/log/results.XXXXXX")
started=$SECONDS

# Adds up cargo's result lines: "test result: ok. 12 passed; 0 failed; 1 ignored; ...".
total() {
  awk -v seconds="$1" '
    /^test result: / { for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) passed += $(i - 1)
      if ($i ~ /^failed/) failed += $(i - 1)
      if ($i ~ /^ignored/) skipped += $(i - 1) } }
    /^skipped: / { skipped++; left_out = left_out "\n" $0 }
    END {
      if (left_out) printf "\nNot every server can do everything:%s\n", left_out
      printf "\n== %d s in all\n", seconds
      printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : "" }' "$results"
}

finish() {
  local status=$?
  say_failed_step
  # A suite that ran no test has shown nothing. (A broken build has no failed test to show: the exit code tells.)
  if [ -n "$tests_expected" ] && ((status == 0)) && ! grep -Eq '^test result: .* [1-9][0-9]* passed' "$results"; then
    echo "error: no test was run" >&2
    status=1
  fi
  [ -z "$tests_expected" ] || total $((SECONDS - started))
  rm -f "$results"
  exit "$status"
}
trap finish EXIT

# Everything the tests print goes to the terminal as it comes, and is kept for the total.
counted() { "$@" | tee -a "$results"; }

# Where Node.js is there, its numbers are compared as well.
suite_pure() {
  counted cargo test --no-fail-fast -p command_ledger_domain -p command_ledger_wire -p command_ledger_model
  ! command -v node >/dev/null || counted cargo test -p command_ledger_domain --test identity -- --ignored node_prints
}

# The suite inside a backend of one major.
db_on() {
  local pgdata=$STATE/pgdata args=()
  build_for "$1"
  rm -rf "$pgdata" # what a killed run left
  mkdir -p "$pgdata"
  if is_root; then
    chown postgres: "$pgdata"
    args=(--runas postgres)
    export PATH="$ROOT/scripts/shim:$PATH"
  fi
  share_test_dependencies
  # pgrx asks the environment who it is.
  USER=$(id -un) counted cargo pgrx test "pg$1" --no-default-features --features "pg$1 failpoints" \
    --pgdata "$pgdata" ${args[@]+"${args[@]}"}
}

# What differs between majors: reading and writing tables without plans, the caches of other sessions, workers and
# hooks, the catalog; and the way from the oldest.
SMOKE=(--test main_job --test plans --test register --test pull --test lifecycle --test upgrade --test major_upgrade)

# blackbox_on MAJOR [TEST...]: the suite of the project's own harness, or a part of it, against a tree that has the
# extension with its fault points.
blackbox_on() {
  local bin
  # What pg_upgrade comes from: built already, where the suite ran on it before.
  if (($1 > PG_MAJOR)); then
    LEDGER_OLD_PG_BIN=$("$ROOT/scripts/install_tree.sh" "$PG_MAJOR" test dev failpoints)
    export LEDGER_OLD_PG_BIN
  fi
  bin=$("$ROOT/scripts/install_tree.sh" "$1" test dev failpoints)
  # For the example in Python.
  LEDGER_PYTHON=$("$ROOT/scripts/python.sh" "psycopg[binary]==$PSYCOPG_VERSION")/python
  export LEDGER_PYTHON
  LEDGER_PG_BIN=$bin counted cargo test --no-fail-fast -p pg_test "${@:2}"
}

# package_on MAJOR: the package, unpacked into a server that never saw the extension, does the main job.
package_on() {
  local bin deb unpacked
  scripts/package.sh "$1"
  (cd dist && sha256sum --check --strict --quiet SHA256SUMS)
  deb=$(echo "$ROOT"/dist/postgresql-"$1"-command-ledger_*.deb)
  if apt-get --version >/dev/null 2>&1 && [ -x "/usr/lib/postgresql/$1/bin/postgres" ]; then
    note "apt says what it would do:"
    apt-get install --simulate "$deb" | grep '^Inst postgresql-'
  fi
  bin=$(private_tree "$1" package)
  find "$(tree_root "$1" package)" -name 'command_ledger*' -delete
  unpacked=$(mktemp -d "$STATE/pg/.deb.XXXXXX")
  dpkg-deb --extract "$deb" "$unpacked"
  cp "$unpacked/usr/lib/postgresql/$1/lib/"* "$("$bin/pg_config" --pkglibdir)/"
  cp "$unpacked/usr/share/postgresql/$1/extension/"* "$("$bin/pg_config" --sharedir)/extension/"
  rm -rf "$unpacked"
  LEDGER_PG_BIN=$bin counted cargo test --no-fail-fast -p pg_test --test main_job --test dumps --test packaging
}

# Where no server of a major is at hand: whether the extension compiles for it, against the bindings that pgrx carries.
compile_for() {
  DOCS_RS=1 RUSTC_WRAPPER=$ROOT/scripts/shim/rustc-docsrs cargo check -p command_ledger --no-default-features \
    --features "pg$1 failpoints"
}

set_up=
for suite in "$@"; do
  if [ -z "$set_up" ] && [ "$suite" = pure ]; then
    scripts/bootstrap.sh --rust-only
  elif [ -z "$set_up" ]; then
    scripts/bootstrap.sh
    set_up=yes
  fi
  case $suite in
  lint | compile-*) ;;
  *) tests_expected=yes ;;
  esac
  case $suite in
  lint) scripts/lint.sh ;;
  pure) step "Pure tests: decisions and wire" suite_pure ;;
  db) step "Tests inside PostgreSQL $PG_MAJOR" db_on "$PG_MAJOR" ;;
  db-*) step "Tests inside PostgreSQL ${suite#db-}" db_on "${suite#db-}" ;;
  blackbox) step "Black-box tests on PostgreSQL $PG_MAJOR" blackbox_on "$PG_MAJOR" ;;
  blackbox-*) step "Black-box tests on PostgreSQL ${suite#blackbox-}" blackbox_on "${suite#blackbox-}" ;;
  compile-*) step "The extension compiles for PostgreSQL ${suite#compile-}" compile_for "${suite#compile-}" ;;
  package-*) step "The package for PostgreSQL ${suite#package-}" package_on "${suite#package-}" ;;
  smoke-*) step "The main job on PostgreSQL ${suite#smoke-}" blackbox_on "${suite#smoke-}" "${SMOKE[@]}" ;;
  *) die "no such suite: $suite" ;;
  esac
done
