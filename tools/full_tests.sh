#!/usr/bin/env bash
# The full tier behind `./dev test --full` and .ci/run: what takes longer than the tests themselves.
# Each step prints its name and time; its output goes to build/full/NAME.log and is shown when it
# fails. Test programs write reports (JUnit XML, rows of attn check) to build/full/reports/NAME, which
# tools/count_tests.py counts. The last line is "N passed, N failed": steps, and the tests that they ran.
#
# usage: tools/full_tests.sh [STEP...]      default: the steps of CI; --list prints them
#        tools/full_tests.sh distributed    libattn.distributed on up to 8 ranks, all cases: 2 minutes
#        tools/full_tests.sh --all          those and zoo: every architecture of transformers against eager
#        tools/full_tests.sh --build-ahead  only builds what the steps of CI test; .ci/run runs it in parallel
#
# CI has 40 minutes on two cores. With ATTN_FULL_SECONDS, seconds since ATTN_FULL_START (of `date +%s`), a
# step that is not expected to end by then is left out, mutations are seeded until then, and WebGPU runs
# fewer cases. Lines say what was left out. Fast machines have time for all steps. For slow ones the long
# steps take turns: the commit chooses which of them are first (ATTN_CI_TURN=N chooses others), so that
# each runs in a part of the commits. What CI samples runs completely on request:
#   ATTN_CASE_LIMIT=all tools/full_tests.sh webgpu    the complete case list on Mesa's CPU driver; the
#                                                     step webgpu of gpu_tests.sh runs it on a GPU
#   tests/fuzz/run.sh SECONDS                         longer fuzzing
#   attn_cuda_configs --every-type                    f16 next to bf16 on every architecture
#   tools/full_tests.sh zoo                           11 minutes; CI's step python compares a slice
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
logs=$PWD/build/full
jobs=${ATTN_JOBS:-$(nproc)}
mkdir -p "$logs"
# Steps in one string run in parallel, because neither uses more than one processor. A colon separates
# steps of one turn.
first=("setup" "format consumers" "cuda" "emulator")
turns=("asan:fuzz docs" "python" "tsan:coverage" "webgpu:aarch64")
last=("mutations")
# Seconds that steps take on slow processors.
declare -A slow_seconds=([asan]=700 [fuzz]=300 [tsan]=430 [cuda]=115 [emulator]=120 [python]=1250 [coverage]=400 [webgpu]=400
  [aarch64]=900 [mutations]=300)

# turn is the place in `turns` that is first, by the commit. groups: all steps in their order.
commit=$(git rev-parse HEAD 2>/dev/null || echo 00000)
turn=0
[ -z "${ATTN_FULL_SECONDS:-}" ] || turn=$((${ATTN_CI_TURN:-16#${commit:0:4}} % ${#turns[@]}))
groups=("${first[@]}")
for ((n = 0; n < ${#turns[@]}; ++n)); do
  IFS=: read -ra in_turn <<<"${turns[(turn + n) % ${#turns[@]}]}"
  groups+=("${in_turn[@]}")
done
groups+=("${last[@]}")

# The time at which all steps have to have ended, of `date +%s`; without a limit a time far away.
deadline=$(($(date +%s) + 1000000))
[ -z "${ATTN_FULL_SECONDS:-}" ] || deadline=$((ATTN_FULL_START + ATTN_FULL_SECONDS))


# asan and tsan are clang's builds, release is g++'s. Warnings are errors in all three.
export ATTN_WERROR=ON
# Shaders that Mesa's driver has compiled, for the tests of WebGPU in every step; the presets' too. Without
# its optimizer (nopt) the driver compiles in 0.7 of the time, and compiling is nine tenths of these tests.
export MESA_SHADER_CACHE_DIR=$PWD/build/mesa_shader_cache GALLIVM_PERF=nopt NODEVICE_SELECT=1

# build PRESET: builds it, once --build-ahead no longer does.
build() { flock "build/$1.lock" ./dev build "$@"; }

# Builds the presets in the order of their steps, and the copies that mutations are seeded into. At the
# lowest priority, because it runs next to tests: builds then use the processors that tests and downloads
# leave idle. A build that fails here is repeated by its step, which shows the errors. It goes on after an
# error (-k 0), because CMake allows 5 s to list the tests of a program.
build_ahead() {
  local preset
  renice -n 19 $BASHPID
  for preset in ${groups[*]}; do
    case $preset in asan | tsan | coverage | aarch64) build "$preset" -- -k 0 ;; esac
  done
  flock build/mutations.lock python3 tests/mutations/run.py --prepare
}

# run_ctest BUILD ARGUMENT...: ctest with a report of its own.
run_ctest() {
  local build=$1 number
  shift
  number=$(find "$reports" -name '*.xml' | wc -l)
  ctest --test-dir "build/$build" -j "$jobs" --output-on-failure --no-tests=error \
    --output-junit "$reports/ctest$number.xml" "$@"
}

step_setup() { ./dev setup --full; }
step_format() { ./dev lint; }

# The release build as an installed library, and the packages of vcpkg, Debian and Conan, each with a consumer.
# Packages are compiled with the flags of the release build, so that their objects come from ccache: 70 s of a
# processor for all three, with other flags 400 s for Debian's alone.
step_consumers() {
  ./dev build release && tests/consumers/run.sh build/release &&
    ATTN_REPORTS=$reports packaging/build.sh --ci vcpkg debian conan
}

# Address and undefined-behaviour sanitizers. With WebGPU, Mesa's drivers are kept loaded: on some
# processors they hold memory until the end, and LeakSanitizer reports it when their module is gone.
# cuda.bench_latency is left out: nearly all its time is NVRTC's, which is not instrumented, and other tests
# of cuda make the same calls of the library.
step_asan() {
  local -x ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
    LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0"
  local webgpu='(webgpu\.|example\.webgpu)' mesa
  mesa=$(cd "/usr/lib/$(uname -m)-linux-gnu" && ls -d "$PWD"/{libvulkan_lvp.so,dri/swrast_dri.so} 2>/dev/null)
  build asan &&
    ATTN_CASE_LIMIT=60 run_ctest asan \
      -E "^($webgpu|cuda\.bench_latency\$|correctness\.(reference|(target|small)\.(SCALAR|AVX3|NEON))\$)" &&
    LD_PRELOAD=${mesa//$'\n'/:} run_ctest asan -R "^$webgpu"
}

# In the build of asan.
step_fuzz() { tests/fuzz/run.sh 40; }

# The site, and each of its pages in a browser; python/tests/test_docs.py checks what they say.
step_docs() { ./dev docs && { [ "${ATTN_BROWSER:-}" = off ] || python3 tools/docs/browse.py; }; }

# Data races: clang and its OpenMP. OpenMP's tool library tells the sanitizer what OpenMP orders.
# Modules that are not instrumented are ignored; otherwise the runtime itself causes false reports.
# The preset builds the folders of tests/ that run here.
step_tsan() {
  build tsan &&
    ATTN_CASE_LIMIT=40 ATTN_NUM_THREADS=4 TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
      OMP_TOOL_LIBRARIES=/usr/lib/llvm-19/lib/libarcher.so run_ctest tsan \
      -R '^(unit\.|cuda\.Cuda(Graphs|LoadedKernels)|example\.|properties|correctness\.(forward\.0|backward\.0|decode)$)'
}

# Every CUDA kernel that plans choose, compiled without a GPU: those that have changed since
# tests/cuda/kernel_resources.record was written (`--write`), and one of 16 of the others. The tests with
# that compiler are part of `./dev test`.
step_cuda() {
  local wheel
  wheel=$(ls -d .venv/lib/python3*/site-packages/nvidia/cu13 2>/dev/null)
  [ -z "$wheel" ] || local -x ATTN_NVRTC=${ATTN_NVRTC:-$PWD/${wheel%/nvidia/cu13}}
  ./dev build release &&
    build/release/tests/cuda/attn_cuda_configs --jobs "$jobs" --logs build/cuda_logs \
      --record tests/cuda/kernel_resources.record --check 24
}

# Kernels for Hopper on the emulator: 16 cases of 330, which the commit chooses, and a seed, which orders
# warps and asynchronous copies. tests/cuda/emulator/cases.py runs all of them, in 40 minutes.
step_emulator() {
  ./dev build release &&
    tests/cuda/emulator/cases.py --seeds $((16#${commit:4:2})) --sample 16 --turn $((16#${commit:0:4})) \
      --rows "$reports/cases.jsonl"
}

# The WebGPU backend on Mesa's CPU driver: every kernel compiled, then the case list, one process per
# processor, since the driver compiles and runs on one thread of a process. In parallel the kernels
# run in a browser. Its compiler enforces more rules.
step_webgpu() {
  local browser failed=0
  ./dev build release && ATTN_EVERY_KERNEL=1 run_ctest release -R '^webgpu\.Kernel' || return 1
  tests/webgpu/browser/run.py build/release >"$logs/webgpu_browser.log" 2>&1 &
  browser=$!
  webgpu_cases || failed=1
  wait "$browser" || failed=1
  cat "$logs/webgpu_browser.log"
  return $failed
}

# 3001 of about 8000 cases, evenly spread: each option in each pass and type, and 2400 of 5500 pairs.
# The number has no common factor with the periods of the list. All of these take up to 800 s; with less
# time left, a third of them. A process runs the cases of one pass and type (those of f64 and 8-bit types,
# which are refused, with others): such cases share shaders, and two processes that need the same shader at
# the same time would both compile it.
webgpu_cases() {
  local limit=${ATTN_CASE_LIMIT:-3001} lists=$logs/webgpu_cases status=0
  if [ -z "${ATTN_CASE_LIMIT:-}" ] && (($(date +%s) + 800 > deadline)); then
    limit=1001
    echo "1001 cases in place of 3001: less than 800 s are left"
  fi
  [ "$limit" != all ] || limit=$((1 << 30))
  rm -rf "$lists" && mkdir "$lists" || return 1
  build/release/cli/attn check --list --limit "$limit" | awk -v lists="$lists" '{
    type = match($0, / dtype=[a-z0-9]+/) ? substr($0, RSTART + 7, RLENGTH - 7) : "f32"
    sub(/^f64$/, "f32", type)
    sub(/^f8.*/, "f16", type)
    print >(lists "/" $1 "." type)
  }' || return 1
  # Longest lists first.
  (cd "$lists" && ls -S) | lists=$lists reports=$reports xargs -P "$jobs" -I GROUP bash -c '
    mapfile -t cases <"$lists/GROUP" && build/release/cli/attn check --json --device webgpu --jobs 1 \
      --case "${cases[@]}" >"$reports/cases.GROUP.jsonl"' || status=1
  grep -h '"result":"failed"' "$reports"/cases.*.jsonl | head -n 40
  return $status
}

# Executed lines of core and of the CPU kernels; of kernels with bf16 instructions only where the processor
# has these. Fewer cases for kernels without vectors (SCALAR): their threads contend for the counters of
# the innermost loop.
step_coverage() {
  local kernels='src/cpu/kernels/tile_ops' absent=()
  grep -qw amx_bf16 /proc/cpuinfo || absent+=(--exclude "$kernels/amx_")
  grep -qw avx512_bf16 /proc/cpuinfo || absent+=(--exclude "$kernels/bf16_(.*avx512|block|decode|ops)")
  build coverage &&
    find build/coverage -name '*.gcda' -delete &&
    ATTN_CASE_LIMIT=250 run_ctest coverage -E '^correctness\.(reference|small\..*|target\.SCALAR)$' &&
    ATTN_CASE_LIMIT=80 run_ctest coverage -R '^correctness\.target\.SCALAR$' &&
    gcovr --root . --object-directory build/coverage --filter 'src/core/' \
      --filter 'src/cpu/kernels/' "${absent[@]}" --exclude-throw-branches --fail-under-line 95 \
      --txt --print-summary -j "$jobs"
}

# Under qemu. A forked child cannot start threads there (qemu aborts), so the fork tests are left out;
# so is the mirror of the complete case list, which takes minutes, and properties.threads: qemu keeps the
# host's memory order, so it shows no more than the same test does natively and under the thread sanitizer.
step_aarch64() {
  build aarch64 &&
    ATTN_CASE_LIMIT=40 run_ctest aarch64 \
      -E '^(properties\.threads|unit\.(Fork\..*|.*In(AChild|Children))|cuda\.CudaMirror\.Calls.*|correctness\.(reference|small\..*|target\.(SCALAR|AVX2|AVX3)))$'
}

# With a limit of time, one of the two older versions of PyTorch.
no_environment=
[ -z "${ATTN_FULL_SECONDS:-}" ] || no_environment=torch2.$((16#${commit:4:1} % 2 ? 4 : 6))
environments() { python3 tools/python_envs.py list | grep -vFx "$no_environment"; }
step_python() {
  local names
  mapfile -t names < <(environments)
  [ -z "$no_environment" ] ||
    echo "$no_environment skipped: it takes turns; tools/python_tests.sh $no_environment"
  ATTN_REPORTS=$reports tools/python_tests.sh "${names[@]}"
}
step_zoo() { ./dev wheel && .venv/bin/nox -f tools/noxfile.py -s zoo; }
step_distributed() { ./dev wheel && .venv/bin/nox -f tools/noxfile.py -s distributed; }
step_mutations() {
  flock build/mutations.lock python3 tests/mutations/run.py --until "$deadline"
}

# Runs a step and writes "EXIT_STATUS SECONDS PROCESSOR_SECONDS" to its .end file. It runs in a subshell,
# where `times` counts only the step's processes.
run_step() {
  local name=$1 started=$SECONDS status=0
  reports=$logs/reports/$name
  rm -rf "$reports"
  mkdir -p "$reports"
  "step_$name" >"$logs/$name.log" 2>&1 || status=$?
  times >"$logs/$name.times"
  echo "$status $((SECONDS - started)) $(awk -F '[ms ]+' 'NR == 2 { print int(60 * ($1 + $3) + $2 + $4) }' \
    "$logs/$name.times")" >"$logs/$name.end"
}

if [ "${1:-}" = --list ]; then
  printf '%s\n' "${groups[@]}"
  exit 0
fi
if [ "${1:-}" = --build-ahead ]; then
  build_ahead >"$logs/build_ahead.log" 2>&1
  exit
fi
if [ "${1:-}" = --all ]; then
  groups+=("zoo")
elif [ $# -gt 0 ]; then
  groups=("$@")
fi
for name in ${groups[*]}; do
  if ! declare -F "step_$name" >/dev/null; then
    echo "full_tests: no step '$name'; --list prints them" >&2
    exit 2
  fi
done
# The Python environments of the step python download while the steps before it run: downloads use little
# of a processor. That step waits for those that are not ready, and makes those that failed here. A
# subshell, so that no `wait` of the steps below waits for it.
make_environments() {
  local name
  for name in $(environments | tac); do
    case $name in
      py*) ;; # the step makes these
      *) nice -n 10 python3 tools/python_envs.py make "$name" ;;
    esac
  done
}
# With a limit of time only if that step comes early; it may be left out otherwise.
early=${#groups[@]}
[ -z "${ATTN_FULL_SECONDS:-}" ] || early=$((${#first[@]} + 1))
case " ${groups[*]:0:early} " in
  *" python "*) (make_environments >"$logs/environments.log" 2>&1 &) ;;
esac
passed=0
failed=0
failures=()
add_tests() {
  local good bad skipped
  read -r good bad skipped < <(python3 tools/count_tests.py "$1")
  passed=$((passed + good))
  failed=$((failed + bad))
  counted="$good tests passed, $bad failed, $skipped skipped"
}
# The tests that .ci/run ran before, with a report.
if [ -n "${ATTN_REPORTS:-}" ]; then
  add_tests "$ATTN_REPORTS"
  echo "== ./dev test: $counted"
fi
for group in "${groups[@]}"; do
  needed=0
  for name in $group; do
    needed=$((needed > ${slow_seconds[$name]:-0} ? needed : ${slow_seconds[$name]:-0}))
  done
  if (($(date +%s) + needed > deadline)); then
    echo "== $group SKIPPED: up to $needed s, more than are left; tools/full_tests.sh $group"
    continue
  fi
  echo "== $group"
  for name in $group; do
    rm -f "$logs/$name.end"
    run_step "$name" &
  done
  wait
  for name in $group; do
    read -r status seconds processor < <(cat "$logs/$name.end" || echo "1 0 0")
    add_tests "$logs/reports/$name"
    if [ "$status" = 0 ]; then
      passed=$((passed + 1))
      outcome=passed
    else
      failed=$((failed + 1))
      outcome=FAILED
      failures+=("$name")
      tail -n 120 "$logs/$name.log"
    fi
    echo "== $name $outcome in $seconds s ($processor s of processors); $counted"
    grep -hE 'cases in place of|mutations left out|skipped: (needs|it takes)' "$logs/$name.log"
  done
done
# Once more at the end, for those who see only the last lines.
for name in "${failures[@]}"; do
  echo "== $name FAILED:"
  python3 tools/count_tests.py --failures "$logs/reports/$name"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
