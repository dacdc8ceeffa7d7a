# shellcheck shell=bash
# Shared by every script here: where things live, how progress and failures are said.
# Source it, do not run it.
set -euo pipefail
# The server runs as another user than root: what is made here must be readable by it.
umask 022

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Versions this tree is built and tested with.
export RUSTC_MIN=1.95.0
export CARGO_PGRX_VERSION=0.18.1
export PGSPOT_VERSION=0.9.4
export RUFF_VERSION=0.17.5
export PSYCOPG_VERSION=3.3.9
export CARGO_DENY_VERSION=0.20.2
PG_MAJOR=${PG_MAJOR:-15}

# Everything that is not the checkout: private PostgreSQL trees, tools, test clusters.
# Two checkouts that test at the same time need two of them.
STATE=${LEDGER_STATE:-/var/tmp/command_ledger-$(id -un)}
case $STATE in
/*) ;;
*) STATE=$PWD/$STATE ;;
esac
# Unix socket paths below it may not exceed 107 bytes.
if ((${#STATE} > 60)); then
  echo "error: LEDGER_STATE=$STATE is longer than 60 bytes, too long for the Unix sockets below it: choose a shorter path" >&2
  exit 1
fi

export PATH="$STATE/tools/bin:${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
export CARGO_TERM_PROGRESS_WHEN=${CARGO_TERM_PROGRESS_WHEN:-auto}
# cargo-pgrx would pass the linker a flag that keeps its schema section, and cargo would build every dependency a
# second time for it. Linkers of the last years keep that section by themselves (SHF_GNU_RETAIN); with one that does
# not, the install says that there is no schema section, and this line is to be removed.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1

# The extension is built by 'cargo build', its tests by 'cargo test', and cargo would give both a set of dependencies
# of their own, because the test harness asks some for more features. Naming the examples, of which there are none,
# makes it take the harness into account in both.
share_test_dependencies() { export PGRX_BUILD_FLAGS=--examples; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

note() { printf '   %s\n' "$*"; }

# step TITLE COMMAND...: a header, the command, and how long it took. A failing command ends the script (its errexit
# stays in force inside), and the exit trap below says which step it was.
STEP=
step() {
  STEP=$1 STEP_STARTED=$SECONDS
  shift
  printf '\n== %s\n' "$STEP"
  "$@"
  printf '== %s: done (%d s)\n' "$STEP" $((SECONDS - STEP_STARTED))
  STEP=
}

say_failed_step() {
  [ -z "$STEP" ] || printf '\n== %s: FAILED (%d s)\n' "$STEP" $((SECONDS - STEP_STARTED))
  STEP=
}
trap say_failed_step EXIT

is_root() { [ "$(id -u)" -eq 0 ]; }

# The system user that servers run as: never root.
server_user() { if is_root; then echo postgres; else id -un; fi; }

# as_admin COMMAND...: as root, through sudo when needed.
as_admin() {
  if is_root; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "installing system packages needs root, and sudo is not there: run 'make setup' as root once"
  fi
}

# as_server COMMAND...: as the user that owns the servers, in a directory which that user can enter.
as_server() (
  cd /
  if is_root; then
    runuser -u postgres -- "$@"
  else
    "$@"
  fi
)

tree_root() { echo "$STATE/pg/$1-$2"; }
tree_bin() { echo "$STATE/pg/$1-$2/usr/lib/postgresql/$1/bin"; }

# private_tree MAJOR NAME: the bin directory of a private server, made if it is not there.
private_tree() {
  if [ "$1" = "$PG_MAJOR" ]; then
    "$ROOT/scripts/pg_tree.sh" "$1" "$2"
  else
    "$ROOT/scripts/pg_wheel.sh" "$1" "$2"
  fi
}

# cargo-pgrx keeps its configuration here, not in the home directory.
export PGRX_HOME=$STATE/pgrx

# build_for MAJOR: which headers every build reads from here on, and the tree that 'cargo pgrx test' installs into. Each
# major has a configuration of its own, so that building for one does not outdate the bindings of another. The file is
# only written when it has to change: cargo rebuilds PostgreSQL's bindings when it is newer than them.
build_for() {
  local bin
  case $1 in
  "$PG_MAJOR") PGRX_HOME=$STATE/pgrx ;;
  *) PGRX_HOME=$STATE/pgrx-$1 ;;
  esac
  bin=$(private_tree "$1" unit)
  if ! grep -qsF "pg$1 = \"$bin/pg_config\"" "$PGRX_HOME/config.toml"; then
    mkdir -p "$PGRX_HOME"
    cargo pgrx init --no-run "--pg$1" "$bin/pg_config" >"$STATE/log/pgrx-init.log" 2>&1 ||
      die "cargo pgrx init failed: $(tail -n 3 "$STATE/log/pgrx-init.log")"
  fi
}
