#!/usr/bin/env bash
# Debian packages of the release build, one per major whose server headers are installed, and their checksums.
#   scripts/package.sh [MAJOR...]     (16 and 18 are built without Debian's headers too, when they are asked for) writes dist/postgresql-MAJOR-command-ledger_VERSION-1_ARCH.deb and dist/SHA256SUMS
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

# Where the headers of a major are: Debian's, or else (only on request) those of the server that the suite tests on.
# What an extension sees of a server is the same throughout a major.
pg_config_of() {
  local debian=/usr/lib/postgresql/$1/bin/pg_config
  if [ -e "/usr/include/postgresql/$1/server/postgres.h" ] && [ -x "$debian" ]; then
    echo "$debian"
  else
    echo "$(private_tree "$1" unit)/pg_config"
  fi
}

build_package() {
  local major=$1 pg_config raw
  local name=postgresql-$1-command-ledger
  local work=$CARGO_TARGET_DIR/package/$name
  local doc=$work/usr/share/doc/$name lib=$work/usr/lib/postgresql/$1/lib
  local extension=$work/usr/share/postgresql/$1/extension
  local deb=dist/${name}_$version-1_$arch.deb
  pg_config=$(pg_config_of "$major") || die "no headers of PostgreSQL $major: apt-get install postgresql-server-dev-$major"
  rm -rf "$work" "$work.raw"
  # The private trees' headers are these servers'; those of other majors are told here.
  case $pg_config in
  "$STATE"/*) build_for "$major" ;;
  *) [ "$major" = "$PG_MAJOR" ] || export PGRX_PG_CONFIG_PATH=$pg_config ;;
  esac
  cargo pgrx package --pg-config "$pg_config" --out-dir "$work.raw" --no-default-features --features "pg$major"
  unset PGRX_PG_CONFIG_PATH

  # cargo-pgrx lays it out as the server that it was built with; a package is laid out as Debian's.
  raw=$work.raw/$("$pg_config" --sharedir)/extension
  install -d "$doc" "$lib" "$extension" "$work/DEBIAN"
  install -m 644 "$work.raw/$("$pg_config" --pkglibdir)/command_ledger.so" "$lib/"
  install -m 644 "$raw"/command_ledger.control "$raw"/command_ledger--*.sql "$extension/"
  # Symbols for the debugger are not for production servers, names for backtraces are.
  strip --strip-debug "$lib/command_ledger.so"
  install -m 644 LICENSE "$doc/copyright"
  install -m 644 README.md "$doc/"
  gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
  find "$work" -type d -exec chmod 755 {} +
  find "$work" -type f -exec chmod 644 {} +
  (cd "$work" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  sed -e "s/@MAJOR@/$major/g" -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" \
    -e "s/@SIZE@/$(du -sk "$work/usr" | cut -f1)/" -e "s/@LIBRARIES@/$(libraries "$lib/command_ledger.so")/" \
    ops/packaging/debian/control.in >"$work/DEBIAN/control"
  dpkg-deb --root-owner-group -Zxz --build "$work" "$deb"
  rm -rf "$work.raw"
}

# A package that installs to the wrong place, or that carries test code, must not leave the house.
check_package() {
  local deb=dist/postgresql-$1-command-ledger_$version-1_$arch.deb file contents
  contents=$(dpkg-deb --contents "$deb" | awk '{ print $6 }')
  for file in "lib/postgresql/$1/lib/command_ledger.so" "share/postgresql/$1/extension/command_ledger.control" \
    "share/postgresql/$1/extension/command_ledger--$version.sql" sql/command_ledger--*--*.sql; do
    case $file in sql/*) file=share/postgresql/$1/extension/${file#sql/} ;; esac
    grep -qxF "./usr/$file" <<<"$contents" || die "$deb lacks $file"
  done
  ! grep -aqF command_ledger.failpoint \
    "$CARGO_TARGET_DIR/package/postgresql-$1-command-ledger/usr/lib/postgresql/$1/lib/command_ledger.so" ||
    die "$deb was built with failpoints"
  [ "$(dpkg-deb --field "$deb" Package)" = "postgresql-$1-command-ledger" ] || die "$deb has another name"
  [ "$(dpkg-deb --field "$deb" Version)" = "$version-1" ] || die "$deb has another version"
  case $(dpkg-deb --field "$deb" Depends Description Installed-Size) in
  *@*) die "$deb has a placeholder that nobody filled in" ;;
  esac
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
  step "Package for PostgreSQL $major" build_package "$major"
  check_package "$major"
done
(cd dist && sha256sum postgresql-*-command-ledger_*.deb >SHA256SUMS)
echo
cat dist/SHA256SUMS
