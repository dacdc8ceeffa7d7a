#!/usr/bin/env bash
# A private Python environment with the named packages at the given versions, made or completed when needed.
#   scripts/python.sh PACKAGE==VERSION...     prints the environment's bin directory
. "$(dirname "$0")/lib.sh"

venv=$STATE/venv
log=$STATE/log/pip.log

make_venv() {
  rm -rf "$venv"
  python3 -m venv "$venv" >"$log" 2>&1 ||
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
