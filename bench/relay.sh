#!/usr/bin/env bash
# The relay against a sink on this machine.
#   bench/relay.sh              throughput: a clean sink, one that resets connections, and the server killed meanwhile
#   bench/relay.sh latency      from the commit to the first byte at the destination, one command at a time
#   bench/relay.sh sink-down    stops the sink, if a broken run left it
# The sink is nginx: Debian's nginx-light is installed where none is there.
. "$(dirname "$0")/lib.sh"

sink_down() {
  [ -s "$BENCH_DIR/sink/pid" ] || return 0
  local pid
  pid=$(cat "$BENCH_DIR/sink/pid")
  # Only if it is still ours: the number may belong to somebody else by now.
  if grep -qs "$BENCH_DIR/sink" "/proc/$pid/cmdline"; then kill "$pid"; fi
  rm -f "$BENCH_DIR/sink/pid"
}

nginx_ready() {
  if PATH=$PATH:/usr/sbin command -v nginx >/dev/null; then return; fi
  mkdir -p "$STATE/log"
  # Debian starts a web server when it installs one: not here.
  local policy=/usr/sbin/policy-rc.d made=
  if ! [ -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_admin tee "$policy" >/dev/null
    as_admin chmod +x "$policy"
    made=yes
  fi
  local status=0
  { as_admin apt-get update -q && as_admin env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends nginx-light; } >"$STATE/log/nginx.log" 2>&1 </dev/null || status=$?
  [ -z "$made" ] || as_admin rm -f "$policy"
  ((status == 0)) || die "nginx-light could not be installed (log: $STATE/log/nginx.log)"
}

case ${1:-} in
sink-down) sink_down ;;
latency)
  server_ready
  if BENCH_PYTHON=$(bench_python driver) && export BENCH_PYTHON; then
    part latency
  else
    note "left out: no psycopg"
  fi
  ;;
'')
  server_ready
  nginx_ready
  trap sink_down EXIT
  part relay
  ;;
*) die "usage: bench/relay.sh [latency|sink-down]" ;;
esac
