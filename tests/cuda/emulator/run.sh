#!/usr/bin/env bash
# Runs a program on the emulator of CUDA kernels: run.sh PROGRAM ARGUMENT...
# HACKING.md describes what the emulator checks and its environment variables.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
[ $# -gt 0 ] || { echo "usage: run.sh PROGRAM ARGUMENT..." >&2; exit 2; }
command -v clang++-19 >/dev/null || { echo "run.sh: clang++-19 is needed" >&2; exit 2; }

folder=$root/build/emulator
[ -f "$root/build/release/CMakeCache.txt" ] || { echo "run.sh: first ./dev build" >&2; exit 2; }
mkdir -p "$folder"
if ! cmake --build "$root/build/release" --target attn_cuda_emulator >"$folder/build.log" 2>&1; then
  tail -20 "$folder/build.log" >&2
  exit 2
fi

# The library's cache holds the path of a translated kernel, so it doesn't outlive the run.
cache=$(mktemp -d "$folder/library_cache.XXXXXX")
trap 'rm -rf "$cache"' EXIT
export ATTN_CACHE_DIR=$cache ATTN_NVRTC=$folder/libnvrtc.so
export ATTN_CUDA_FAMILY=${ATTN_CUDA_FAMILY:-sm90}
LD_LIBRARY_PATH=$folder "$@"
