#!/usr/bin/env bash
# Builds packages by the recipes of this folder into build/packages/ and runs tests/consumers against what
# they install. Nothing is installed elsewhere.
#
# usage: packaging/build.sh [--ci] [debian | conan | vcpkg]...      default: all three
#
# debian: needs debhelper. conan: needs Conan 2, from PATH or .venv; the libraries that libattn needs are the
# system's (system.profile), so nothing is downloaded. vcpkg: the port's script with stand-ins for vcpkg's
# functions (stand_ins.cmake). The recipe for conda needs the channel conda-forge and is not built here.
# `./dev setup --full` gets debhelper and Conan.
#
# --ci: compiles with the flags of the release build in place of those of Debian and Conan, so that objects come
# from ccache; skips a package, with the reason, if its tool is missing. Rows of `attn check` and of skipped packages
# go to the folder ATTN_REPORTS, for tools/count_tests.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
jobs=${ATTN_JOBS:-$(nproc)}
version=$(sed -n 's/^  VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt)
reports=${ATTN_REPORTS:-$root/build/packages/reports}
mkdir -p "$reports"
ci=
if [ "${1:-}" = --ci ]; then
  ci=1
  shift
fi
launcher=
if command -v ccache >/dev/null 2>&1; then
  launcher=ccache
  [ -z "$ci" ] || launcher=$root/packaging/ccache_launcher.sh
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DEPEND=1
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
  CCACHE_DIR=$(ccache --get-config cache_dir) # debhelper changes HOME
  export CCACHE_DIR ATTN_TREE=$root ATTN_LC_ALL=${LC_ALL:-}
fi
# The options of CMake with which --ci finds the objects of the release build.
release_options=(CMAKE_UNITY_BUILD=ON CMAKE_UNITY_BUILD_BATCH_SIZE=16 "ATTN_WERROR=${ATTN_WERROR:-OFF}")

# The command for Conan.
conan() {
  if [ -x "$root/.venv/bin/conan" ]; then "$root/.venv/bin/conan" "$@"; else command conan "$@"; fi
}

# The reason why a package can't be built here; empty if it can.
obstacle() {
  case $1 in
    debian) command -v dpkg-buildpackage && command -v dh || echo "needs dpkg-dev and debhelper" ;;
    conan) conan --version || echo "needs Conan 2" ;;
  esac 2>/dev/null | sed -n '/^needs/p'
}

# The files that git knows, as they are now, in an empty folder.
copy_sources() {
  rm -rf "$1"
  mkdir -p "$1"
  git ls-files -z --cached --others --exclude-standard -- . ':!bench/results' ':!examples/results' |
    tar --null --files-from=- --create | tar --extract --directory "$1"
}

build_debian() {
  local folder=$root/build/packages/debian arguments=(-b -us -uc) options=parallel=$jobs
  rm -rf "$folder"
  copy_sources "$folder/libattn-$version"
  cd "$folder/libattn-$version"
  cp -r packaging/debian debian
  cat >debian/changelog <<END
libattn ($version) unstable; urgency=medium

  * CHANGELOG.md has the changes.

 -- libattn maintainers <maintainers@libattn.invalid>  $(git -C "$root" log -1 --format=%aD)
END
  if [ -n "$ci" ]; then
    # The linker's flags stay Debian's. -d: build dependencies need not be Debian packages.
    export DEB_CFLAGS_SET= DEB_CXXFLAGS_SET= DEB_CPPFLAGS_SET= CMAKE_OPTIONS="${release_options[*]/#/-D}"
    arguments+=(-d)
    options+=" noautodbgsym"
  fi
  CMAKE_CXX_COMPILER_LAUNCHER=$launcher DEB_BUILD_OPTIONS="$options ${DEB_BUILD_OPTIONS:-}" \
    dpkg-buildpackage "${arguments[@]}"
  cd "$folder"
  local package
  for package in ./*.deb; do
    case $package in *dbgsym*) ;; *) dpkg-deb -x "$package" installed ;; esac
  done
  "$root/tests/consumers/run.sh" --prefix installed/usr
  LD_LIBRARY_PATH=$(dirname "$(find "$PWD/installed" -name libattn.so)")
  export LD_LIBRARY_PATH
  installed/usr/bin/attn info
  installed/usr/bin/attn check --backend cpu --limit 20 --json | tee "$reports/debian.jsonl"
  ! command -v lintian >/dev/null 2>&1 ||
    lintian --allow-root --fail-on error --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog ./*.changes
  ls -l ./*.deb
}

build_conan() {
  export CONAN_HOME=$root/build/packages/conan
  mkdir -p "$CONAN_HOME"
  conan profile detect --exist-ok
  local kind arguments=()
  if [ -n "$ci" ]; then
    # CMAKE_CXX_FLAGS is empty to leave out Conan's -m64.
    local variables
    variables=$(printf "'%s'," "${release_options[@]/=/\':\'}")
    arguments=(-c tools.cmake.cmaketoolchain:generator=Ninja
      -c "tools.cmake.cmaketoolchain:extra_variables={'CMAKE_CXX_FLAGS':'',$variables}")
  fi
  for kind in True False; do
    CMAKE_CXX_COMPILER_LAUNCHER=$launcher conan create packaging/conan --no-remote \
      --profile:all packaging/conan/system.profile -o "&:shared=$kind" -o "&:command=$kind" \
      -c tools.build:jobs="$jobs" -c tools.cmake.cmake_layout:test_folder="$CONAN_HOME/test" "${arguments[@]}"
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
    debian | conan | vcpkg) ;;
    *) echo "build.sh: found '$name'; accepted debian, conan, vcpkg" >&2; exit 2 ;;
  esac
  reason=$(obstacle "$name")
  if [ -n "$ci" ] && [ -n "$reason" ]; then
    echo "== $name skipped: $reason; ./dev setup --full"
    echo '{"result":"skipped"}' >"$reports/$name.jsonl"
    continue
  fi
  [ -z "$reason" ] || { echo "$name: $reason" >&2; exit 1; }
  # Not "(...) || ...": there bash ignores set -e.
  set +e
  (set -e; "build_$name")
  status=$?
  set -e
  [ $status = 0 ] || { echo "$name: failed" >&2; exit 1; }
  echo "== $name: built and tested"
done
