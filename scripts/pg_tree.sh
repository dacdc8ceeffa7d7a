#!/usr/bin/env bash
# A private copy of an installed PostgreSQL, so that building, testing and the demo never touch the system's.
#   scripts/pg_tree.sh MAJOR NAME     prints the bin directory of the tree, made if it is not there or outdated
#
# PostgreSQL finds its libraries and its share directory relative to its own executable, as long as the layout below
# some prefix is the same: a real copy of the two directories below another prefix is a whole installation.
# Headers are only read: the include directory is a link.
. "$(dirname "$0")/lib.sh"

[ $# -eq 2 ] || die "usage: scripts/pg_tree.sh MAJOR NAME"
major=$1
tree=$(tree_root "$major" "$2")
bin=$(tree_bin "$major" "$2")
lib=/usr/lib/postgresql/$major
share=/usr/share/postgresql/$major

make_tree() {
  [ -x "$lib/bin/postgres" ] || die "PostgreSQL $major is not installed below $lib: run 'make setup'"
  local new
  new=$(mktemp -d "$STATE/pg/.tree.XXXXXX")
  mkdir -p "$new/usr/lib/postgresql" "$new/usr/share/postgresql" "$new/usr/include"
  # Bitcode and the JIT are a third of the size and no use here.
  mkdir "$new/usr/lib/postgresql/$major" "$new/usr/lib/postgresql/$major/lib"
  cp -a "$lib/bin" "$new/usr/lib/postgresql/$major/"
  find "$lib/lib" -mindepth 1 -maxdepth 1 ! -name bitcode ! -name 'llvmjit*' \
    -exec cp -a -t "$new/usr/lib/postgresql/$major/lib" {} +
  cp -a "$share" "$new/usr/share/postgresql/"
  [ ! -d /usr/include/postgresql ] || ln -s /usr/include/postgresql "$new/usr/include/postgresql"
  chmod a+rx "$new"
  "$lib/bin/postgres" --version >"$new/VERSION"
  rm -rf "$tree"
  mv "$new" "$tree"
  check_tree
}

# A tree that answered with the system's paths would make an install write there.
check_tree() {
  local what
  for what in sharedir pkglibdir; do
    case $("$bin/pg_config" "--$what") in
    "$tree"/*) ;;
    *) die "$bin/pg_config --$what lies outside of $tree: this PostgreSQL cannot be moved" ;;
    esac
  done
}

mkdir -p "$STATE/pg"
chmod a+rx "$STATE" "$STATE/pg"
# A security update of the system's package renews the copy.
if ! [ -x "$bin/postgres" ] || [ "$(cat "$tree/VERSION" 2>/dev/null)" != "$("$lib/bin/postgres" --version 2>/dev/null)" ]; then
  make_tree
fi
echo "$bin"
