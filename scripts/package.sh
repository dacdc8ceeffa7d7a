#!/usr/bin/env bash
# Debian packages of the release build, one per major whose server headers are installed, and their checksums.
#   scripts/package.sh [MAJOR...]     writes dist/postgresql-MAJOR-command-ledger_VERSION-1_ARCH.deb and dist/SHA256SUMS
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
arch=$(dpkg --print-architecture)
# The same commit makes the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

# What the library needs from the C library and the compiler's runtime, as Debian names it.
libraries() {
  local newest
  newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n1)
  printf 'libc6 (>= %s)' "$newest"
  if objdump -p "$1" | grep -q 'NEEDED.*libgcc_s'; then printf ', libgcc-s1'; fi
  echo
}

build_package() {
  local major=$1 pg_config=/usr/lib/postgresql/$1/bin/pg_config
  local name=postgresql-$1-command-ledger
  local work=$CARGO_TARGET_DIR/package/$name
  local doc=$work/usr/share/doc/$name library=$work/usr/lib/postgresql/$1/lib/command_ledger.so
  local deb=dist/${name}_$version-1_$arch.deb
  rm -rf "$work"
  # The private trees' headers are this server's; other majors are told here.
  [ "$major" = "$PG_MAJOR" ] || export PGRX_PG_CONFIG_PATH=$pg_config
  cargo pgrx package --pg-config "$pg_config" --out-dir "$work" --no-default-features --features "pg$major"
  [ -s "$library" ] || die "the build left no $library"

  # Symbols for the debugger are not for production servers, names for backtraces are.
  strip --strip-debug "$library"
  install -d "$doc" "$work/DEBIAN"
  install -m 644 LICENSE "$doc/copyright"
  if [ -e README.md ]; then install -m 644 README.md "$doc/"; fi
  if [ -e CHANGELOG.md ]; then gzip -9n <CHANGELOG.md >"$doc/changelog.gz"; fi
  find "$work" -type d -exec chmod 755 {} +
  find "$work" -type f -exec chmod 644 {} +
  (cd "$work" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  sed -e "s/@MAJOR@/$major/g" -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" \
    -e "s/@SIZE@/$(du -sk "$work/usr" | cut -f1)/" -e "s/@LIBRARIES@/$(libraries "$library")/" \
    ops/packaging/debian/control.in >"$work/DEBIAN/control"
  dpkg-deb --root-owner-group -Zxz --build "$work" "$deb"
}

# A package that installs to the wrong place, or that carries test code, must not leave the house.
check_package() {
  local deb=dist/postgresql-$1-command-ledger_$version-1_$arch.deb file
  for file in "./usr/lib/postgresql/$1/lib/command_ledger.so" \
    "./usr/share/postgresql/$1/extension/command_ledger.control" \
    "./usr/share/postgresql/$1/extension/command_ledger--$version.sql"; do
    dpkg-deb --contents "$deb" | awk '{ print $6 }' | grep -qxF "$file" || die "$deb lacks $file"
  done
  ! strings -a "$CARGO_TARGET_DIR/package/postgresql-$1-command-ledger/usr/lib/postgresql/$1/lib/command_ledger.so" |
    grep -qF command_ledger.failpoint || die "$deb was built with failpoints"
}

scripts/bootstrap.sh
command -v dpkg-deb >/dev/null || die "dpkg-deb is not there: packages are built on Debian"
majors=("$@")
if ((${#majors[@]} == 0)); then
  for major in 15 16 17 18; do
    [ ! -e "/usr/include/postgresql/$major/server/postgres.h" ] || majors+=("$major")
  done
fi
mkdir -p dist
rm -f dist/postgresql-*-command-ledger_*.deb dist/SHA256SUMS
for major in "${majors[@]}"; do
  [ -x "/usr/lib/postgresql/$major/bin/pg_config" ] || die "PostgreSQL $major is not installed: apt-get install postgresql-server-dev-$major"
  step "Package for PostgreSQL $major" build_package "$major"
  check_package "$major"
done
(cd dist && sha256sum postgresql-*-command-ledger_*.deb >SHA256SUMS)
echo
cat dist/SHA256SUMS
