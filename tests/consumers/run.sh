#!/bin/sh
# Installs a build of libattn to a temporary prefix, moves it, and builds and runs programs against
# it: through find_package and pkg-config, shared and static.
# usage: run.sh [build folder of libattn, built]     default: builds the library in build/consumers
#        run.sh --prefix FOLDER                      what a package installed; without a static library too
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-}
prefix=
[ "$build" != --prefix ] || prefix=$(cd "$2" && pwd)
if [ -z "$build" ]; then
  build=$here/../../build/consumers
  cmake -S "$here/../.." -B "$build" -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_CLI=OFF \
    -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_BENCH=OFF -DATTN_BUILD_EXAMPLES=OFF >/dev/null
  cmake --build "$build" -j "$(nproc)" >/dev/null
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$prefix" ]; then
  cmake --install "$build" --prefix "$work/first" >/dev/null
  mv "$work/first" "$work/moved" # a package that only works where it was installed is broken
  prefix=$work/moved
fi
lib=$(dirname "$(find "$prefix" -name libattn.so)")
kinds=shared
[ ! -e "$lib/libattn.a" ] || kinds="shared static"

for kind in $kinds; do
  static=$([ $kind = static ] && echo ON || echo OFF)
  cmake -S "$here/cmake" -B "$work/$static" -DSTATIC=$static -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build "$work/$static" >/dev/null
  for program in consumer_c consumer_cpp; do
    printf 'find_package, static %s: ' "$static"
    "$work/$static/$program"
  done
done

export PKG_CONFIG_PATH="$lib/pkgconfig"
cc=${CC:-cc}
cxx=${CXX:-c++}
shared="$(pkg-config --cflags --libs attn) -Wl,-rpath,$lib"
# The archive by name, as -lattn would take the shared library.
static="$(pkg-config --cflags attn) $lib/libattn.a $(pkg-config --static --libs-only-l attn | sed 's/-lattn//') $(pkg-config --static --libs-only-other attn)"
for kind in $kinds; do
  eval "flags=\$$kind"
  $cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$here/consumer.c" $flags -lm -o "$work/c_$kind"
  $cxx -std=c++20 -Wall -Wextra -Wpedantic -Werror "$here/consumer.cpp" $flags -o "$work/cpp_$kind"
  for program in c cpp; do
    printf 'pkg-config, %s: ' "$kind"
    "$work/${program}_$kind"
  done
done
