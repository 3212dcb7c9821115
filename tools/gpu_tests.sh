#!/usr/bin/env bash
# Everything that needs a GPU, on the machine that has one: tests, sanitizers, benchmarks, plots.
# The programs may have been built elsewhere. Steps:
#
#   cases      the case list on CUDA, forward and backward in every option, against the reference
#   sanitizer  compute-sanitizer's memcheck, racecheck, initcheck, synccheck on a slice of the list
#   repeat     1000 forwards and 1000 deterministic backwards: the same bits
#   graphs     captures, replays with changed inputs, side streams behind a delay, threads
#   python     the package on CUDA: options, drop-ins, other makers' arrays, bad input, the cache
#   bench      plain cells and options beside PyTorch's kernels, memory, latency; rows
#   plots      pictures of the rows
#
# Each prints its verdict and time; ends with a table and "N passed, N failed". A step that can't
# run on this machine is skipped with its reason; one in which no test ran has failed.
#
# usage: tools/gpu_tests.sh BUNDLE [STEP...]   BUNDLE: made by tools/gpu_bundle.sh; default: all
#
# Environment: OUT (rows, plots and gpu.log with every step's output; default build/gpu),
# ATTN_PYTHON (a Python with torch and pytest; default python3), ATTN_SANITIZER_CASES (default 48),
# ATTN_BENCH_ARGUMENTS (further words for bench/peers/torch_cuda.py).
set -uo pipefail
bundle=$(cd "${1:?usage: tools/gpu_tests.sh BUNDLE [STEP...]}" && pwd) || exit 1
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
all=(cases sanitizer repeat graphs python bench plots)
out=${OUT:-$PWD/build/gpu}
logs=$PWD/build/gpu/logs
python=${ATTN_PYTHON:-python3}
rows=$out/rows.jsonl
cases=${ATTN_SANITIZER_CASES:-48}
mkdir -p "$out" "$logs"
export PYTHONPATH=$PWD/python ATTN_LIBRARY=$bundle/lib/libattn.so
ATTN_BENCH_COMMIT=${ATTN_BENCH_COMMIT:-$(cat "$bundle/commit" 2>/dev/null)}
export ATTN_BENCH_COMMIT
[ -d "$bundle/cache" ] && export ATTN_CACHE_DIR=$bundle/cache

step_cases() {
  ATTN_CASE_BACKEND=cuda "$bundle/run" attn_correctness_test --gtest_filter='Cases.*'
}

# A tool counts as passed when it ran to its own summary and found nothing.
step_sanitizer() {
  local tool status bad=0
  "$bundle/run" attn info --backend cuda
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== $tool, $cases cases"
    LD_LIBRARY_PATH=$bundle/lib timeout 300 "$(sanitizer)" --tool "$tool" --error-exitcode 3 --print-limit 20 \
      "$bundle/bin/attn" check --device cuda --exact --dtype bf16 --limit "$cases" \
      >"$logs/$tool.log" 2>&1
    status=$?
    tail -60 "$logs/$tool.log"
    if [ $status = 0 ] && grep -qE '(ERROR SUMMARY: 0 errors|0 hazards displayed)' "$logs/$tool.log"
    then
      echo "[  PASSED  ] 1 test. ($tool)"
    else
      echo "[  FAILED  ] 1 test. ($tool: exit status $status)"
      bad=1
    fi
  done
  return $bad
}

pytest() { "$python" -m pytest -q -rs -p no:cacheprovider --durations 3 "$@"; }
step_repeat() { pytest python/tests/cuda/test_cuda_repeat.py; }
step_graphs() { pytest python/tests/cuda/test_cuda_graphs.py; }
# Most of the time goes into compiling kernels, so that several processes at once are quicker.
step_python() {
  local here=python/tests/cuda several=() status
  "$python" -c 'import xdist' 2>/dev/null && several=(-n 8)
  OMP_NUM_THREADS=2 pytest "${several[@]}" python/tests/test_device_arrays.py $here \
    --deselect $here/test_cuda_repeat.py --deselect $here/test_cuda_graphs.py \
    --deselect $here/test_cuda_memory.py
  status=$?
  pytest $here/test_cuda_memory.py && return $status
}

# Plain cells and options end with a table of ratios each.
step_bench() {
  local suite bad=0
  for suite in plain options memory latency; do
    # shellcheck disable=SC2086
    "$python" bench/peers/torch_cuda.py --suite $suite --out "$rows" ${ATTN_BENCH_ARGUMENTS:-} ||
      bad=1
  done
  "$bundle/run" attn bench --device cuda --latency || bad=1
  return $bad
}

step_plots() { "$python" bench/plot.py "$rows" --out "$out"; }

sanitizer() {
  command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null
}

# Why a step can't run here; nothing where it can.
lacks() {
  local modules=torch,pytest
  if [ "$1" != plots ] && ! nvidia-smi -L >/dev/null 2>&1; then
    echo "no NVIDIA GPU: nvidia-smi is not there or lists none"
    return
  fi
  case $1 in
    sanitizer) [ -n "$(sanitizer)" ] || echo "no compute-sanitizer, which CUDA's toolkit has" ;;
    plots)
      modules=matplotlib
      [ -e "$rows" ] || echo "no rows: $rows is not there" ;;
  esac
  case $1 in
    cases | sanitizer) ;;
    *) "$python" -c "import $modules" 2>/dev/null || echo "$python has no ${modules/,/ or no }" ;;
  esac
}

# "passed failed skipped" of the tests that a step's log tells of, in googletest's and pytest's
# words.
counts() {
  sed -nE -e 's/^\[  (PASSED|FAILED)  \] ([0-9]+) tests?[.,].*/gtest \1 \2/p' \
    -e 's/^(=+ )?([0-9]+ (passed|failed|skipped|error).* in [0-9.]+s.*)$/pytest \2/p' "$1" |
    awk '$1 == "gtest" { if ($2 == "PASSED") passed += $3; else failed += $3 }
      $1 == "pytest" {
        for (at = 2; at < NF; ++at) {
          if ($(at + 1) ~ /^passed/) passed += $at
          if ($(at + 1) ~ /^skipped/) skipped += $at
          if ($(at + 1) ~ /^(failed|errors?)/) failed += $at
        }
      }
      END { print passed + 0, failed + 0, skipped + 0 }'
}

if [ $# -gt 0 ]; then steps=("$@"); else steps=("${all[@]}"); fi
for name in "${steps[@]}"; do
  declare -F "step_$name" >/dev/null || {
    echo "gpu_tests: step '$name' is none of ${all[*]}" >&2
    exit 2
  }
done
python3 tools/generate_abi.py include/attn/attn.h python/libattn/_abi.py || exit 1

passed=0 failed=0
table=()
for name in "${steps[@]}"; do
  reason=$(lacks "$name" | head -n 1)
  if [ -n "$reason" ]; then
    echo "== $name: skipped: $reason"
    table+=("$(printf '%-10s skipped  %s' "$name" "$reason")")
    continue
  fi
  began=$SECONDS
  echo "== $name" | tee -a "$out/gpu.log"
  ("step_$name") 2>&1 | tee -a "$out/gpu.log" >"$logs/$name.log"
  status=${PIPESTATUS[0]}
  read -r good bad left < <(counts "$logs/$name.log")
  case $name in
    bench | plots) ;;
    *) [ "$good" != 0 ] || status=1 ;; # no test ran
  esac
  verdict=passed
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    case $name in bench) cat "$logs/$name.log" ;; esac
  else
    verdict=FAILED
    failed=$((failed + 1))
    tail -n 80 "$logs/$name.log"
  fi
  table+=("$(printf '%-10s %-8s %5d s  tests: %d passed, %d failed, %d skipped' \
    "$name" "$verdict" $((SECONDS - began)) "$good" "$bad" "$left")")
  echo "${table[-1]}"
done
echo
printf '%s\n' "${table[@]}" | tee -a "$out/gpu.log"
echo "$passed passed, $failed failed" | tee -a "$out/gpu.log"
[ $failed = 0 ]
