#!/usr/bin/env bash
# The full tier behind `./dev test --full` and .ci/run: what takes longer than the tests themselves.
# Each step prints its name and time; its output goes to build/full/NAME.log and is shown when it
# fails. Ends with "N passed, N failed": steps, and the tests that they ran.
#
# usage: tools/full_tests.sh [STEP...]      default: all steps; --list names them
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=$PWD/build/full
jobs=${ATTN_JOBS:-$(nproc)}
mkdir -p "$logs"
steps=(setup format asan tsan cuda webgpu coverage aarch64 fuzz consumers python mutations)

step_setup() { ./dev setup --full; }
step_format() { ./dev lint; }

# asan and tsan are clang's builds, release is g++'s; in all three warnings are errors.
export ATTN_WERROR=ON
# Shaders that Mesa's driver has compiled, for the tests of WebGPU in every step; the presets' too.
export MESA_SHADER_CACHE_DIR=$PWD/build/mesa_shader_cache NODEVICE_SELECT=1

# With WebGPU Mesa's drivers are kept loaded: what they hold to the end on some processors would have no
# owner if they were not, and be called a leak.
step_asan() {
  local -x ATTN_CASE_LIMIT=60 ASAN_OPTIONS=detect_stack_use_after_return=1 \
    LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0" \
    UBSAN_OPTIONS=print_stacktrace=1
  local webgpu='(webgpu\.|example\.webgpu)' mesa
  mesa=$(cd "/usr/lib/$(uname -m)-linux-gnu" && ls -d "$PWD"/{libvulkan_lvp.so,dri/swrast_dri.so} 2>/dev/null)
  ./dev build asan &&
    ctest --test-dir build/asan -j "$jobs" --output-on-failure \
      -E "^($webgpu|correctness\.(reference|target\.(SCALAR|AVX3|NEON))\$)" &&
    LD_PRELOAD=${mesa//$'\n'/:} ctest --test-dir build/asan -j "$jobs" --output-on-failure \
      -R "^$webgpu"
}

# Data races: clang and its OpenMP, whose tool library tells the sanitizer what OpenMP orders. Modules
# that are not instrumented are ignored, without which the runtime itself gives false reports.
step_tsan() {
  ./dev build tsan &&
    ATTN_CASE_LIMIT=40 ATTN_NUM_THREADS=4 TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
      OMP_TOOL_LIBRARIES=/usr/lib/llvm-19/lib/libarcher.so \
      ctest --test-dir build/tsan --output-on-failure \
      -R '^(unit\.|cuda\.CudaGraphs|example\.|properties|correctness\.(forward\.0|backward\.0|decode)$)'
}

# The CUDA backend without a GPU: its tests again, with a compiler, which `./dev test` may not have
# had; then every kernel that plans choose.
step_cuda() {
  local wheel
  wheel=$(ls -d .venv/lib/python3*/site-packages/nvidia/cu13 2>/dev/null)
  [ -z "$wheel" ] || local -x ATTN_NVRTC=$PWD/${wheel%/nvidia/cu13}
  ./dev build release &&
    ctest --test-dir build/release -j "$jobs" --output-on-failure -R '^cuda\.' &&
    build/release/tests/cuda/attn_cuda_configs --jobs "$jobs" --logs build/cuda_logs
}

# The WebGPU backend on Mesa's CPU driver: every kernel compiled, then the whole case list, a process
# for each processor, since the driver compiles and runs on one thread of a process. Beside them the
# kernels in a browser, whose compiler holds them to more rules.
step_webgpu() {
  local browser failed=0
  ./dev build release &&
    ATTN_EVERY_KERNEL=1 ctest --test-dir build/release -j "$jobs" --output-on-failure \
      -R '^webgpu\.Kernel' || return 1
  tests/webgpu/browser/run.py build/release >"$logs/webgpu_browser.log" 2>&1 &
  browser=$!
  webgpu_cases || failed=1
  wait "$browser" || failed=1
  cat "$logs/webgpu_browser.log"
  return $failed
}

# ATTN_CASE_LIMIT: so many in all.
webgpu_cases() {
  local shard process processes=() failed=0
  for ((shard = 0; shard < jobs; ++shard)); do
    build/release/cli/attn check --device webgpu ${ATTN_CASE_LIMIT:+--limit "$ATTN_CASE_LIMIT"} \
      --shard "$shard/$jobs" --jobs 1 &
    processes+=($!)
  done
  for process in "${processes[@]}"; do
    wait "$process" || failed=1
  done
  return $failed
}

# Without the long rows of the memory test, which run elsewhere. Fewer cases for the kernels of one
# lane, where threads fight over the counters of the innermost loop.
step_coverage() {
  ./dev build coverage &&
    find build/coverage -name '*.gcda' -delete &&
    ATTN_CASE_LIMIT=250 ctest --test-dir build/coverage -j "$jobs" --output-on-failure \
      -E '^(reference|memory|correctness\.(reference|target\.SCALAR))$' &&
    ATTN_CASE_LIMIT=80 ctest --test-dir build/coverage --output-on-failure \
      -R '^correctness\.target\.SCALAR$' &&
    gcovr --root . --object-directory build/coverage --filter 'src/core/' \
      --filter 'src/cpu/kernels/' --exclude-throw-branches --fail-under-line 95 \
      --txt --print-summary -j "$jobs"
}

# Under the emulator, in which a forked child cannot start threads (it aborts in its own code), so
# without the fork tests; and without the mirror of the whole case list, which takes minutes there.
step_aarch64() {
  ./dev build aarch64 &&
    ATTN_CASE_LIMIT=40 ctest --test-dir build/aarch64 -j "$jobs" --output-on-failure \
      -E '^(reference|memory|unit\.(Fork\..*|.*In(AChild|Children))|cuda\.CudaMirror\.Calls.*|correctness\.(reference|target\.(SCALAR|AVX2|AVX3)))$'
}

step_fuzz() { tests/fuzz/run.sh 40; }
step_consumers() { ./dev build release && tests/consumers/run.sh build/release; }
step_python() { tools/python_tests.sh; }
step_mutations() { python3 tests/mutations/run.py; }

# "passed failed" of the tests that a step's log tells of, in ctest's words and in pytest's, which are
# those of attn check as well.
counts() {
  sed -nE -e 's/.*tests passed, ([0-9]+) tests? failed out of ([0-9]+).*/ctest \1 \2/p' \
    -e 's/^(=+ )?([0-9]+ (passed|failed|error).* in [0-9.]+ ?s([ ;].*)?)$/pytest \2/p' "$1" |
    awk '$1 == "ctest" { failed += $2; passed += $3 - $2 }
      $1 == "pytest" {
        for (at = 2; at < NF; ++at) {
          if ($(at + 1) ~ /^passed/) passed += $at
          if ($(at + 1) ~ /^(failed|errors?)/) failed += $at
        }
      }
      END { print passed + 0, failed + 0 }'
}

if [ "${1:-}" = --list ]; then
  printf '%s\n' "${steps[@]}"
  exit 0
fi
[ $# -gt 0 ] && steps=("$@")
passed=0
failed=0
for name in "${steps[@]}"; do
  if ! declare -F "step_$name" >/dev/null; then
    echo "full_tests: no step '$name'; --list names them" >&2
    exit 2
  fi
  started=$SECONDS
  echo "== $name"
  if "step_$name" >"$logs/$name.log" 2>&1; then
    outcome=passed
    passed=$((passed + 1))
  else
    outcome=FAILED
    failed=$((failed + 1))
    tail -n 120 "$logs/$name.log"
  fi
  read -r tests_passed tests_failed < <(counts "$logs/$name.log")
  passed=$((passed + tests_passed))
  failed=$((failed + tests_failed))
  echo "== $name $outcome in $((SECONDS - started)) s"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
