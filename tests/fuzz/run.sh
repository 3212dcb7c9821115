#!/usr/bin/env bash
# Builds the fuzzers with clang and runs each for the given number of seconds (default 60) from its
# seed corpus, then prints the line coverage that it reached. Exit code 1 when one found something;
# the input that does it is then in build/fuzz/findings.
set -euo pipefail

seconds="${1:-60}"
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
build="$root/build/fuzz"
clangxx="${CLANGXX:-clang++-19}"
suffix="${clangxx#clang++}"
flags="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all -O1 -g"
flags+=" -fprofile-instr-generate -fcoverage-mapping"

subjects=(npy safetensors problem validate)
declare -A sources=(
  [npy]="src/files/npy.cpp src/files/npy_header.cpp src/files/tensor.cpp"
  [safetensors]="src/files/safetensors.cpp src/files/safetensors_header.cpp src/files/tensor.cpp"
  [problem]="src/core/problem.cpp"
  [validate]="src/core/validate*.cpp src/core/tensor_rules.cpp src/core/overlap.cpp"
)

cd "$root"
mkdir -p build
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$clangxx" -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="$flags" -DATTN_BUILD_FUZZERS=ON -DATTN_BUILD_TESTS=OFF \
  -DATTN_BUILD_CLI=OFF -DATTN_BUILD_BENCH=OFF -DATTN_BUILD_EXAMPLES=OFF >"$build.log" 2>&1 ||
  { cat "$build.log"; exit 1; }
ninja -C "$build" "${subjects[@]/#/fuzz_}"

rm -rf "$build/findings"
mkdir -p "$build/findings"
fuzz() {
  local subject=$1 grown="$build/corpus/$1" program profile
  mkdir -p "$grown"
  program="$build/tests/fuzz/fuzz_$subject"
  profile="$build/$subject.profraw"
  echo "== $subject: $seconds s"
  if ! LLVM_PROFILE_FILE="$profile" "$program" -max_total_time="$seconds" -max_len=2048 \
    -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$subject-" "$grown" "$here/corpus/$subject" \
    >"$build/$subject.log" 2>&1; then
    tail -n 40 "$build/$subject.log"
    return 1
  fi
  grep -E "cov: .*DONE|number_of_executed_units|average_exec_per_sec" "$build/$subject.log"
  if command -v "llvm-profdata$suffix" >/dev/null && command -v "llvm-cov$suffix" >/dev/null; then
    "llvm-profdata$suffix" merge -sparse "$profile" -o "$build/$subject.profdata"
    # shellcheck disable=SC2086  # the lists are patterns
    "llvm-cov$suffix" report "$program" -instr-profile="$build/$subject.profdata" \
      -show-region-summary=false -show-branch-summary=false ${sources[$subject]} |
      grep -vE '^-+$|^$'
  fi
}

# Two at a time.
failed=0
for ((at = 0; at < ${#subjects[@]}; at += 2)); do
  pids=()
  for subject in "${subjects[@]:at:2}"; do
    fuzz "$subject" >"$build/$subject.out" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  for subject in "${subjects[@]:at:2}"; do cat "$build/$subject.out"; done
done
exit "$failed"
