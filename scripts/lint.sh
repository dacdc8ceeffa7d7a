#!/usr/bin/env bash
# Format, clippy, shell scripts, and the SQL that an installation runs.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

shell_scripts() {
  local files=(.ci/run scripts/*.sh bench/*.sh ops/*.sh peers/*.sh)
  local file
  for file in "${files[@]}"; do bash -n "$file"; done
  sh -n scripts/shim/sudo
  sh -n scripts/shim/rustc-docsrs
  if command -v shellcheck >/dev/null; then
    shellcheck -x -P SCRIPTDIR "${files[@]}" scripts/shim/sudo scripts/shim/rustc-docsrs
  else
    note "shellcheck is not installed: only the syntax was checked"
  fi
}

# The extension apart from the others: in one command, cargo would build its dependencies with the features that any
# of the crates wants, and then a second time for the tests.
clippy_extension() {
  cargo clippy -p command_ledger --all-targets --no-default-features \
    --features "pg$PG_MAJOR failpoints pg_test" -- -D warnings
}
clippy_crates() {
  cargo clippy -p command_ledger_domain -p command_ledger_model -p command_ledger_wire -p pg_test --all-targets -- -D warnings
}

python_files() {
  local tools
  tools=$(scripts/python.sh "ruff==$RUFF_VERSION")
  "$tools/ruff" check --no-cache --quiet peers examples
  "$tools/ruff" format --no-cache --quiet --check peers examples
}

# The suite runs them too, where promtool is there.
alert_rules() {
  if command -v promtool >/dev/null; then
    (cd ops/prometheus && promtool check rules alerts.yml && promtool test rules alerts_test.yml)
  else
    note "promtool is not there (scripts/bootstrap.sh fetches it): the alert rules were not run"
  fi
}

step "Shell scripts" shell_scripts
step "Python" python_files
step "Frozen SQL" scripts/frozen.sh
step "Alert rules" alert_rules
step "Format" cargo fmt --all --check
step "Clippy: pure crates and suite" clippy_crates
step "Clippy: extension" clippy_extension
step "SQL: pgspot" scripts/lint_sql.sh
step "Dependencies: licences, bans, sources" scripts/audit.sh --no-advisories
