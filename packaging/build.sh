#!/usr/bin/env bash
# Builds packages by the recipes of this folder into build/packages/ and runs tests/consumers against what
# they install.
#
# usage: packaging/build.sh [debian | conan | vcpkg]...      default: all three
#
# debian: needs debhelper. conan: needs Conan 2; the libraries that libattn needs are the system's
# (system.profile), so nothing is downloaded. vcpkg: the port's script with stand-ins for vcpkg's functions
# (stand_ins.cmake). The recipe for conda needs the channel conda-forge and is not built here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
jobs=${ATTN_JOBS:-$(nproc)}
version=$(sed -n 's/^  VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt)
if command -v ccache >/dev/null 2>&1; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
fi

# The files that git knows, as they are now, in an empty folder.
copy_sources() {
  rm -rf "$1"
  mkdir -p "$1"
  git ls-files -z --cached --others --exclude-standard -- . ':!bench/results' ':!examples/results' |
    tar --null --files-from=- --create | tar --extract --directory "$1"
}

build_debian() {
  local folder=$root/build/packages/debian
  rm -rf "$folder"
  copy_sources "$folder/libattn-$version"
  cd "$folder/libattn-$version"
  cp -r packaging/debian debian
  cat >debian/changelog <<END
libattn ($version) unstable; urgency=medium

  * CHANGELOG.md has the changes.

 -- libattn maintainers <maintainers@libattn.invalid>  $(git -C "$root" log -1 --format=%aD)
END
  DEB_BUILD_OPTIONS="parallel=$jobs ${DEB_BUILD_OPTIONS:-}" dpkg-buildpackage -b -us -uc
  cd "$folder"
  local package
  for package in ./*.deb; do
    case $package in *dbgsym*) ;; *) dpkg-deb -x "$package" installed ;; esac
  done
  "$root/tests/consumers/run.sh" --prefix installed/usr
  LD_LIBRARY_PATH=$(dirname "$(find "$PWD/installed" -name libattn.so)") installed/usr/bin/attn info
  ! command -v lintian >/dev/null 2>&1 ||
    lintian --allow-root --fail-on error --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog ./*.changes
  ls -l ./*.deb
}

build_conan() {
  export CONAN_HOME=$root/build/packages/conan
  mkdir -p "$CONAN_HOME"
  conan profile detect --exist-ok
  local kind
  for kind in True False; do
    conan create packaging/conan --profile:all packaging/conan/system.profile \
      -o "&:shared=$kind" -c tools.build:jobs="$jobs" \
      -c tools.cmake.cmake_layout:test_folder="$CONAN_HOME/test"
  done
}

build_vcpkg() {
  local folder=$root/build/package_vcpkg # as deep as the other builds, for ccache
  rm -rf "$folder/installed"
  cmake -DPORT="$root/packaging/vcpkg/libattn" -DFOLDER="$folder" -DJOBS="$jobs" \
    -P packaging/vcpkg/stand_ins.cmake
  tests/consumers/run.sh --prefix "$folder/installed"
}

[ $# -gt 0 ] || set -- debian conan vcpkg
for name in "$@"; do
  case $name in
    debian | conan | vcpkg) (set -e; "build_$name") || { echo "$name: failed" >&2; exit 1; } ;;
    *) echo "build.sh: found '$name'; accepted debian, conan, vcpkg" >&2; exit 2 ;;
  esac
  echo "== $name: built and tested"
done
