#!/usr/bin/env bash
# A private Python environment with the named packages at the given versions, made or completed when needed.
#   scripts/python.sh [--env NAME] PACKAGE==VERSION...     prints the environment's bin directory
# An environment with a name of its own is for programs that the server's user runs, and whose dependencies do not go
# together with others'.
. "$(dirname "$0")/lib.sh"

name=venv
if [ "${1:-}" = --env ]; then
  name=$2
  shift 2
fi
venv=$STATE/$name
log=$STATE/log/pip-$name.log

# An interpreter in root's home directory is no use to another user.
interpreter() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if [ "$name" = venv ] || as_server "$(command -v "$candidate")" -c 'import ensurepip, venv' 2>/dev/null; then
      command -v "$candidate" && return
    fi
  done
  die "there is no python3 with the module venv that the user $(server_user) can run: apt-get install python3-venv"
}

make_venv() {
  local python
  python=$(interpreter)
  rm -rf "$venv"
  "$python" -m venv "$venv" >"$log" 2>&1 ||
    die "python3 cannot make a virtual environment: run 'make setup' (log: $log)"
}

mkdir -p "$STATE/log"
"$venv/bin/python" -c '' 2>/dev/null || make_venv
for package in "$@"; do
  stamp=$venv/have-$package
  [ -e "$stamp" ] && continue
  note "pip install $package" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" >"$log" 2>&1 ||
    die "pip could not install $package (no network?): $(tail -n 2 "$log")"
  touch "$stamp"
done
echo "$venv/bin"
