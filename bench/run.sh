#!/usr/bin/env bash
# Measures everything in one go and writes bench/results/DATE.md with its pictures.
#   bench/run.sh            under 30 minutes once the extension is built
#   QUICK=1 bench/run.sh    under 5 minutes: a look, not a measurement
# See bench/lib.sh for what can be set, docs/performance.md for how to read it.
. "$(dirname "$0")/lib.sh"

parts=${BENCH_PARTS:-cells relay latency growth snapshot agent views}
[ -z "$QUICK" ] || note "QUICK=1: these figures are a look, not a measurement"

prepare() {
  "$ROOT/scripts/bootstrap.sh"
  "$ROOT/scripts/install_tree.sh" "$PG_MAJOR" bench release >/dev/null
}

one_server() {
  mkdir -p "$BENCH_DIR"
  : >"$BENCH_RECORDS"
  server_create
  part machine
}

finish() {
  local status=$?
  say_failed_step
  "$ROOT/bench/relay.sh" sink-down 2>/dev/null || true
  server_stop
  exit "$status"
}

started=$SECONDS
step "Building the extension (release) into a private PostgreSQL $PG_MAJOR" prepare
trap finish EXIT
trap 'exit 130' INT TERM
step "One server for all" one_server
for name in $parts; do
  case $name in
  cells) step "Statements against the floors" part cells ;;
  relay | growth | snapshot | agent | views) step "Part: $name" "$ROOT/bench/$name.sh" ;;
  latency) step "Part: latency" "$ROOT/bench/relay.sh" latency ;;
  *) die "no such part: $name" ;;
  esac
done
step "Report" part report "$ROOT/bench/results" $((SECONDS - started))
note "$((SECONDS - started)) s in all"
