#!/usr/bin/env bash
# Installs what is missing to build and test, and nothing else. A run that finds everything takes no time.
#   scripts/bootstrap.sh                everything for building and testing
#   scripts/bootstrap.sh --tools-only   what a build against somebody's own server needs
#   scripts/bootstrap.sh --rust-only    only checks the toolchain
# Debian 12 and the Rust toolchain are expected; the rest comes from here.
. "$(dirname "$0")/lib.sh"

mode=${1:-}
APT_PACKAGES=(libclang-dev gcc libc6-dev make pkg-config)
[ "$mode" = --tools-only ] || APT_PACKAGES+=("postgresql-$PG_MAJOR" "postgresql-server-dev-$PG_MAJOR" sudo)
# For the SQL lint. Debian splits Python: what is there may lack the parts that make an environment.
[ -n "$mode" ] || [ -x "$STATE/venv/bin/python" ] || python3 -c 'import ensurepip, venv' 2>/dev/null ||
  APT_PACKAGES+=(python3-venv)

version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1)" = "$2" ]; }

check_rust() {
  command -v cargo >/dev/null ||
    die "cargo is not there: install the Rust toolchain $RUSTC_MIN or newer (rustup) and run this again"
  local version
  version=$(cd "$ROOT" && rustc --version | cut -d' ' -f2)
  version_at_least "$version" "$RUSTC_MIN" ||
    die "rustc $version is too old: this project needs $RUSTC_MIN or newer ('rustup update stable')"
}

missing_packages() {
  local package
  for package in "${APT_PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

apt_install() (
  export DEBIAN_FRONTEND=noninteractive
  local drop_in=/etc/postgresql-common/createcluster.d/no-main-cluster.conf made_drop_in=
  # Debian's server package creates and starts a cluster of its own when it is installed: not wanted here.
  if ! [ -e "/usr/lib/postgresql/$PG_MAJOR/bin/postgres" ]; then
    as_admin mkdir -p "${drop_in%/*}"
    echo 'create_main_cluster = false' | as_admin tee "$drop_in" >/dev/null
    made_drop_in=yes
  fi
  local log=$STATE/log/apt.log status=0
  note "apt-get update"
  as_admin apt-get update -q >"$log" 2>&1 || status=$?
  if ((status == 0)); then
    note "apt-get install $*"
    as_admin apt-get install -y -q --no-install-recommends "$@" >>"$log" 2>&1 </dev/null || status=$?
  fi
  # Only for our own install: a cluster that the administrator wants later is made as usual.
  [ -z "$made_drop_in" ] || as_admin rm -f "$drop_in"
  if ((status)); then
    tail -n 15 "$log" >&2
    die "apt could not install: $* (no network, or no Debian mirror that has them; whole log: $log)"
  fi
)

cargo_pgrx_is_right() { [ "$(cargo pgrx --version 2>/dev/null)" = "cargo-pgrx $CARGO_PGRX_VERSION" ]; }

install_cargo_pgrx() {
  # Into a directory of our own, so that a version that other projects use stays. Without its HTTP client (nothing
  # is downloaded through it) and with little optimisation: it builds in half the time.
  CARGO_TARGET_DIR=$STATE/build-tools CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=false \
    cargo install cargo-pgrx --version "=$CARGO_PGRX_VERSION" --locked --no-default-features \
    --root "$STATE/tools" || die "cargo could not install cargo-pgrx $CARGO_PGRX_VERSION (see above)"
  rm -rf "$STATE/build-tools"
}

# The alert rules are tested with it. Taken out of Debian's package: installing that would start a server.
fetch_promtool() (
  local folder
  folder=$(mktemp -d "$STATE/promtool.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
  if ! { apt-get download -q prometheus || { as_admin apt-get update -q && apt-get download -q prometheus; }; } \
    >"$STATE/log/promtool.log" 2>&1; then
    note "no package of prometheus to be had (log: $STATE/log/promtool.log): the alert rules will not be run"
    return
  fi
  dpkg-deb --extract prometheus_*.deb .
  install -D -m 755 usr/bin/promtool "$STATE/tools/bin/promtool"
)

mkdir -p "$STATE/log"
chmod a+rx "$STATE"
check_rust
[ "$mode" != --rust-only ] || exit 0
if ! command -v dpkg-query >/dev/null; then
  die "this is not Debian (no dpkg): the private servers are copies of Debian's PostgreSQL $PG_MAJOR"
fi
mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
  step "Installing Debian packages: ${missing[*]}" apt_install "${missing[@]}"
fi
if ! cargo_pgrx_is_right; then
  step "Building cargo-pgrx $CARGO_PGRX_VERSION (once, a few minutes)" install_cargo_pgrx
fi
[ "$mode" != --tools-only ] || exit 0
if ! command -v promtool >/dev/null; then
  step "Fetching promtool" fetch_promtool
fi

build_for "$PG_MAJOR"
