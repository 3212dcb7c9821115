#!/usr/bin/env bash
# Everything that needs a GPU, on the machine that has one: tests, sanitizers, benchmarks, plots.
# The programs may have been built elsewhere. Steps:
#
#   cases      the case list on CUDA, forward and backward in every option, against the reference
#   python     the package on CUDA: options, drop-ins, other makers' arrays, bad input, the cache
#   graphs     captures, replays with changed inputs, side streams behind a delay, threads
#   repeat     1000 forwards, and 1000 deterministic backwards of each kernel: the same bits
#   decode     cases of decode, compute-sanitizer on a slice of them, cells of decode; rows
#   sanitizer  compute-sanitizer's memcheck, initcheck, synccheck on a slice of the case list
#   race       its racecheck on fewer cases, one after the other; a hang names its case
#   plain      plain cells and PyTorch's kernels; rows
#   options    cells with an option on, PyTorch's same cells and our plain cells; rows
#   errors     errors of several draws, ours and flash-attention 2's; rows
#   memory     memory beyond the tensors of a forward and backward of up to 131072 rows; rows
#   latency    start-up, first calls and the host's time for a call, ours and PyTorch's; rows
#   tune       the tuner on a few problems; its result is kept with the logs, not used
#   training   steps of GPT-2 small, by kind of attention, compiled too; rows
#   devices    a second GPU: cases and tensors on it
#   nccl       libattn.distributed on two GPUs: every option over NCCL, in bf16
#   families   merge, its backward and rope; trial kernels of sm90: TMA, clusters, a capture, programmatic
#              dependent launch
#   family_sm90  the same calls by the family sm90 (ATTN_CUDA_FAMILY): cases, memcheck,
#              racecheck, plain cells
#   profile    what bounds the kernels: ncu's view of units, issue slots and stalls
#   plots      pictures of the rows
#   webgpu     the case list and the package through WebGPU (Vulkan)
#   wgpu_bench cells through WebGPU: plain, options, a model's layers, decode with and without
#              subgroups; rows in webgpu.jsonl
#
# Each step prints its verdict and time. The last output is a table and "N passed, N failed".
#
# - A step that can't run on this machine is skipped, with the reason.
# - A step in which no test ran has failed.
# - A step that exceeds its limit is ended, and the next one runs. Its output and its rows until then
#   are kept.
#
# usage: tools/gpu_tests.sh BUNDLE [STEP...]   BUNDLE: made by tools/gpu_bundle.sh; default: all
#        tools/gpu_tests.sh --list             steps, the seconds they take on an H200, their limits
#
# Environment: OUT (rows.jsonl, webgpu.jsonl, plots, gpu.log with every step's output, sanitizer.log, tune.log,
# tuned.txt: 8 files at most; default build/gpu), ATTN_GPU_SECONDS (seconds from the
# start; a step that is not expected to end by then is skipped), ATTN_PYTHON (a Python with torch and pytest; default
# python3), ATTN_SANITIZER_CASES (default 48), ATTN_RACE_CASES (default 16), ATTN_TUNE_SECONDS (for
# each problem, default 40), ATTN_BENCH_ARGUMENTS (further words for bench/peers/torch_cuda.py).
#
# WebGPU's steps need no NVIDIA GPU: without a GPU they take Mesa's driver for the CPU, slowly. For
# them: ATTN_VULKAN_DEBS (a folder of .deb files, libvulkan1 and what it needs, unpacked where the
# machine has no Vulkan loader), ATTN_CASE_LIMIT (the number of cases of the list, evenly spread),
# ATTN_WEBGPU_ARGUMENTS (further words for `attn bench`: "--divide 64 --suite plain"),
# VK_DRIVER_FILES (the driver's .json, where it is in no usual place).
set -uo pipefail
# Step, expected seconds, limit.
steps_known='cases 100 250
python 60 300
graphs 150 250
repeat 45 180
decode 120 420
sanitizer 5 150
race 6 90
plain 115 300
options 115 300
errors 20 120
memory 20 150
latency 55 120
tune 80 150
training 150 400
devices 24 120
nccl 40 150
families 5 60
family_sm90 300 560
profile 44 150
plots 8 60
webgpu 250 500
wgpu_bench 320 500'
if [ "${1:-}" = --list ]; then
  echo "$steps_known" | awk '{ printf "%-11s %4d s, at most %d\n", $1, $2, $3; sum += $2 }
    END { print "in all", sum, "s" }'
  exit 0
fi
bundle=$(cd "${1:?usage: tools/gpu_tests.sh BUNDLE [STEP...]}" && pwd) || exit 2
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
mapfile -t all < <(cut -d ' ' -f 1 <<<"$steps_known")
out=${OUT:-$PWD/build/gpu}
logs=$PWD/build/gpu/logs
python=${ATTN_PYTHON:-python3}
rows=$out/rows.jsonl
mkdir -p "$out" "$logs"
export PYTHONPATH=$PWD/python ATTN_LIBRARY=$bundle/lib/libattn.so ATTN_BENCH_FOLDER=$PWD/bench
# Rows are of the commit that the programs were built from.
ATTN_BENCH_COMMIT=${ATTN_BENCH_COMMIT:-$(cat "$bundle/commit" 2>/dev/null)}
export ATTN_BENCH_COMMIT PYTHONUNBUFFERED=1
[ -n "$ATTN_BENCH_COMMIT" ] || echo "gpu_tests: $bundle/commit is missing: rows have no commit" >&2
[ -d "$bundle/cache" ] && export ATTN_CACHE_DIR=$bundle/cache

# In processes that are ended when they say nothing: a kernel that waits forever is named.
step_cases() { python3 tools/check_cases.py "$bundle/run" attn -- --device cuda; }

# check TOOL CASES WORD...: a slice of the list under a tool, which counts as passed when it ran to
# its own summary and found nothing. Its output is in sanitizer.log too, also of one that was ended.
check() {
  local tool=$1 number=$2 status
  shift 2
  echo "== $tool, $number cases"
  LD_LIBRARY_PATH=$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout -k 5 "$check_seconds" "$(sanitizer)" --tool "$tool" \
    --error-exitcode 3 --print-limit 20 \
    "$bundle/bin/attn" check --device cuda --exact --dtype bf16 --limit "$number" "$@" \
    >"$logs/$tool.log" 2>&1
  status=$?
  { echo "== $tool, $number cases: exit status $status" && cat "$logs/$tool.log"; } >>"$out/sanitizer.log"
  tail -60 "$logs/$tool.log"
  if [ $status = 0 ] && grep -q '[1-9][0-9]* passed, 0 failed' "$logs/$tool.log" &&
    grep -qE '(ERROR SUMMARY: 0 errors|0 hazards displayed)' "$logs/$tool.log"; then
    echo "[  PASSED  ] 1 test. ($tool)"
    return 0
  fi
  [ $status != 124 ] || echo "$tool did not end in $check_seconds s; it was at: $(grep '^begins' \
    "$logs/$tool.log" | tail -n 1)"
  echo "[  FAILED  ] 1 test. ($tool: exit status $status)"
  return 1
}

# Decode has a separate slice for the sanitizer: which block merges depends on the order of blocks.
step_decode() {
  local status=0 check_seconds=60
  if "$bundle/run" attn check --device cuda --pass decode; then
    echo "[  PASSED  ] 1 test. (cases of decode)"
  else
    echo "[  FAILED  ] 1 test. (cases of decode)"
    status=1
  fi
  if [ -n "$(sanitizer)" ]; then
    check memcheck "${ATTN_SANITIZER_CASES:-48}" --pass decode || status=1
    check synccheck "${ATTN_SANITIZER_CASES:-48}" --pass decode || status=1
    check racecheck "${ATTN_RACE_CASES:-16}" --pass decode --jobs 1 --verbose || status=1
  fi
  "$bundle/run" attn bench --device cuda --suite decode --dtype bf16 --seconds 0.2 --out "$rows" || status=1
  return $status
}

step_sanitizer() {
  local tool bad=0 check_seconds=45
  "$bundle/run" attn info --backend cuda
  for tool in memcheck initcheck synccheck; do
    check $tool "${ATTN_SANITIZER_CASES:-48}" || bad=1
  done
  return $bad
}
step_race() {
  local check_seconds=75
  check racecheck "${ATTN_RACE_CASES:-16}" --jobs 1 --verbose
}

pytest() { "$python" -m pytest -q -rs -p no:cacheprovider --durations 3 "$@"; }
step_repeat() { pytest python/tests/cuda/test_cuda_repeat.py; }
step_graphs() { pytest python/tests/cuda/test_cuda_graphs.py; }
# Most of the time goes into compiling kernels, so that several processes at once are quicker.
step_python() {
  local here=python/tests/cuda drop_ins=python/tests/torch several=() status
  "$python" -c 'import xdist' 2>/dev/null && several=(-n 8)
  OMP_NUM_THREADS=2 pytest "${several[@]}" python/tests/test_device_arrays.py $here \
    $drop_ins/test_flash_kvcache.py $drop_ins/test_compiled_dropins.py::test_cache \
    --deselect $here/test_cuda_repeat.py --deselect $here/test_cuda_graphs.py \
    --deselect $here/test_cuda_memory.py
  status=$?
  pytest $here/test_cuda_memory.py && return $status
}

# Plain cells and options end with a table of ratios each.
peers() {
  # shellcheck disable=SC2086
  "$python" bench/peers/torch_cuda.py --suite "$1" --out "$rows" ${ATTN_BENCH_ARGUMENTS:-}
}
step_plain() { peers plain; }
step_options() { peers options; }
step_errors() { peers errors; }
step_memory() { peers memory; }
# Without the driver's cache, in which NVRTC finds what an earlier step has compiled.
step_latency() { CUDA_CACHE_DISABLE=1 "$bundle/run" attn bench --device cuda --latency --peer "$python" --out "$rows"; }

# In a separate folder, because the other steps must use the shipped heuristics. With sm80, because
# backwards of sm90 have no tiles to tune.
step_tune() {
  local sizes='dtype=bf16 batch=4 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096' bad=0 status
  local seconds=${ATTN_TUNE_SECONDS:-40}
  export ATTN_CACHE_DIR=$logs/tune
  rm -rf "$ATTN_CACHE_DIR"
  while read -r pass problem; do
    echo "== $pass $problem"
    ATTN_CUDA_FAMILY=sm80 timeout -k 5 "$seconds" "$bundle/run" attn tune --pass "$pass" --problem "$sizes $problem" \
      --seconds 0.01 --cells 1 --print-table 2>&1
    status=$?
    [ $status != 124 ] || echo "not done in $seconds s, which is no failure"
    [ $status = 0 ] || [ $status = 124 ] || bad=1
  done > >(tee -a "$out/tune.log") <<END
fwd dim_qk=128 dim_vo=128 causal
bwd dim_qk=64 dim_vo=64 causal
END
  "$bundle/run" attn info --backend cuda | grep -i tune | tee -a "$out/tune.log"
  find "$ATTN_CACHE_DIR" -name '*tuned*' -type f -exec cat {} + >"$out/tuned.txt"
  return $bad
}

step_training() {
  "$python" bench/peers/torch_training.py --loss-steps 200 --out "$rows" &&
    "$python" bench/peers/torch_training.py --compile --out "$rows" --attention libattn,cudnn,flash
}

# Several devices.
step_devices() {
  local status=0
  "$bundle/run" attn info --backend cuda
  "$bundle/run" attn_cuda_devices_test || status=1
  "$bundle/run" attn check --device cuda:1 --dtype bf16 --limit 200 || status=1
  pytest python/tests/cuda -k 'two_devices or second_device' || status=1
  return $status
}

step_nccl() {
  OMP_NUM_THREADS=1 "$python" python/tests/shared/distributed_cases.py 2 --cover --device cuda
}

step_families() { "$bundle/run" attn_cuda_gpu_test; }

# Calls that sm90 refuses run on sm80.
step_family_sm90() {
  export ATTN_CUDA_FAMILY=sm90
  local problem='dtype=bf16 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096' status=0 check_seconds=90
  if "$bundle/run" attn info --device cuda --explain "$problem" | grep -q '^family: sm90'; then
    echo "[  PASSED  ] 1 test. (plans choose sm90)"
  else
    echo "[  FAILED  ] 1 test. (plans choose sm90)"
    return 1
  fi
  local pass
  for pass in forward backward; do
    python3 tools/check_cases.py "$bundle/run" attn -- --device cuda --pass "$pass" || status=1
  done
  if [ -n "$(sanitizer)" ]; then
    check memcheck "${ATTN_SANITIZER_CASES:-48}" || status=1
    check racecheck "${ATTN_RACE_CASES:-16}" --jobs 1 --verbose || status=1
  fi
  "$bundle/run" attn bench --device cuda --suite plain --pass fwd,bwd --out "$logs/sm90.jsonl" || status=1
  return $status
}

# One kernel each. Sections rather than metrics, whose names differ among ncu's versions.
step_profile() {
  local kernel pass problem bad=0
  local sizes='dtype=bf16 batch=4 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096'
  local metrics='pipe_((tensor|alu|fma)_cycles|xu)[a-z_.]*avg.pct_of_peak_sustained_active'
  metrics+='|issue_active.avg.pct_of_peak_sustained_active|lsu_wavefronts.avg|(lts__|gpu__dram_)throughput.avg'
  metrics+='|launch__registers_per_thread |stalled_[a-z_]*per_issue_active|rror'
  while read -r kernel pass problem; do
    echo "== $kernel $problem"
    timeout 40 "$(ncu)" --clock-control none --section SpeedOfLight --section SchedulerStats \
      --section WarpStateStats --section ComputeWorkloadAnalysis --section Occupancy --page raw \
      -k "regex:^attn_$kernel\$" -s 1 -c 1 "$bundle/run" attn bench --device cuda --pass "$pass" \
      --problem "$sizes $problem" --no-verify --seconds 0.001 >"$logs/ncu.txt" 2>&1 || bad=1
    grep -E "$metrics" "$logs/ncu.txt" | sed 's/^ *//; s/  */ /g'
  done <<END
forward fwd dim_qk=64 dim_vo=64
forward fwd dim_qk=64 dim_vo=64 dropout
forward fwd dim_qk=128 dim_vo=128
forward fwd dim_qk=64 dim_vo=64 bias=hqk
forward fwd dim_qk=128 dim_vo=128 bias=hqk
backward bwd dim_qk=64 dim_vo=64
backward bwd dim_qk=128 dim_vo=128
backward bwd dim_qk=256 dim_vo=256
backward bwd dim_qk=128 dim_vo=128 bias=hqk dbias
bias_gradient bwd dim_qk=128 dim_vo=128 bias=hqk dbias deterministic
backward bwd dim_qk=128 dim_vo=128 causal window_left=256
END
  return $bad
}

# Unpacks the Vulkan loader if it is missing. If the loader does not find NVIDIA's driver, also writes
# the file that names the driver: containers may lack it.
find_vulkan() {
  local root=$PWD/build/gpu/vulkan deb
  mkdir -p "$root"
  if [ -n "${ATTN_VULKAN_DEBS:-}" ] && ! ldconfig -p | grep -q 'libvulkan\.so\.1'; then
    for deb in "$ATTN_VULKAN_DEBS"/*.deb; do dpkg -x "$deb" "$root" || return 1; done
    LD_LIBRARY_PATH=$(dirname "$(find "$root" -name libvulkan.so.1 | head -n 1)")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
  fi
  if [ -z "${VK_DRIVER_FILES:-}" ] && ldconfig -p | grep -q 'libGLX_nvidia\.so\.0' &&
    ! "$bundle/run" attn info --device webgpu | grep -q -i 'webgpu  *usable.*nvidia'; then
    echo '{"file_format_version": "1.0.0",
      "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}' >"$root/nvidia.json"
    export VK_DRIVER_FILES=$root/nvidia.json
  fi
  export NODEVICE_SELECT=1 # Mesa's layer, which looks for a display
}

step_webgpu() {
  local status=0
  find_vulkan || return 1
  "$bundle/run" attn info --device webgpu
  # By cases at once: most of the time goes into the driver's compiler.
  if "$bundle/run" attn check --device webgpu ${ATTN_CASE_LIMIT:+--limit "$ATTN_CASE_LIMIT"}; then
    echo "[  PASSED  ] 1 test. (the case list)"
  else
    echo "[  FAILED  ] 1 test. (the case list)"
    status=1
  fi
  ATTN_WGPU=${ATTN_WGPU:-$bundle/lib} pytest python/tests/test_webgpu.py || status=1
  return $status
}

# What cells compute is the same as in step webgpu, which compares it: here it would take longer than
# measuring.
step_wgpu_bench() {
  find_vulkan || return 1
  # shellcheck disable=SC2206
  local bench=("$bundle/run" attn bench --device webgpu --no-verify --seconds 0.12 --out "$out/webgpu.jsonl" ${ATTN_WEBGPU_ARGUMENTS:-})
  "${bench[@]}" --dtype f16 || return 1
  ATTN_WEBGPU_SUBGROUPS=0 "${bench[@]}" --dtype f16 --suite decode || return 1
  "${bench[@]}" --dtype f32 --filter plain/b16-h32.8-n1024-,plain/b4-h32.8-n4096-,plain/b1-h32.8-n16384-,decode/
}

step_plots() { "$python" bench/plot.py "$rows" --out "$out"; }

sanitizer() {
  command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null
}

ncu() { command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null; }

# Why a step can't run here; nothing where it can.
lacks() {
  local modules=torch,pytest
  if ! [[ $1 =~ ^(plots|webgpu|wgpu_bench)$ ]] && ! nvidia-smi -L >/dev/null 2>&1; then
    echo "no NVIDIA GPU: nvidia-smi is not there or lists none"
    return
  fi
  case $1 in
    family_sm90) nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9\.0' ||
      echo "needs compute capability 9.0" ;;
    devices | nccl) [ "$(nvidia-smi -L | grep -c '^GPU')" -ge 2 ] || echo "needs two GPUs" ;;
    profile) [ -n "$(ncu)" ] || echo "no ncu, which CUDA's toolkit has" ;;
    sanitizer | race) [ -n "$(sanitizer)" ] || echo "no compute-sanitizer, which CUDA's toolkit has" ;;
    plots)
      modules=matplotlib
      [ -e "$rows" ] || echo "no rows: $rows is not there" ;;
  esac
  case $1 in
    webgpu) modules=numpy,pytest ;;
  esac
  case $1 in
    cases | decode | sanitizer | race | tune | families | family_sm90 | profile | wgpu_bench) ;;
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

if [ -n "${ATTN_GPU_STEP:-}" ]; then # one step, started below
  "step_$ATTN_GPU_STEP"
  exit
fi
if [ $# -gt 0 ]; then steps=("$@"); else steps=("${all[@]}"); fi
for name in "${steps[@]}"; do
  declare -F "step_$name" >/dev/null || {
    echo "gpu_tests: step '$name' is none of ${all[*]}" >&2
    exit 2
  }
done
python3 tools/generate_abi.py include/attn/attn.h python/libattn/_abi.py || exit 1

# The step's number after its name: 1 expected seconds, 2 limit.
told() { awk -v name="$1" -v at="$2" '$1 == name { print $(at + 1) }' <<<"$steps_known"; }

passed=0 failed=0
table=()
echo "expected: $(for name in "${steps[@]}"; do echo -n "$name $(told "$name" 1) s, "; done)commit $ATTN_BENCH_COMMIT" |
  tee -a "$out/gpu.log"
for name in "${steps[@]}"; do
  reason=$(lacks "$name" | head -n 1)
  expected=$(told "$name" 1) limit=$(told "$name" 2)
  if [ -z "$reason" ] && [ -n "${ATTN_GPU_SECONDS:-}" ]; then
    left=$((ATTN_GPU_SECONDS - SECONDS))
    [ "$expected" -le $left ] || reason="it takes about $expected s, $left s are left"
    [ "$limit" -le $left ] || limit=$((left > 1 ? left : 1))
  fi
  if [ -n "$reason" ]; then
    echo "== $name: skipped: $reason" | tee -a "$out/gpu.log"
    table+=("$(printf '%-11s skipped  %s' "$name" "$reason")")
    continue
  fi
  began=$SECONDS
  echo "== $name" | tee -a "$out/gpu.log"
  ATTN_GPU_STEP=$name timeout -k 10 "$limit" bash "$PWD/tools/gpu_tests.sh" "$bundle" 2>&1 |
    tee -a "$out/gpu.log" >"$logs/$name.log"
  status=${PIPESTATUS[0]}
  [ "$status" != 124 ] || echo "$name: ended after $limit s" | tee -a "$out/gpu.log" "$logs/$name.log"
  read -r good bad left < <(counts "$logs/$name.log")
  case $name in
    plain | options | errors | memory | latency | tune | profile | plots | wgpu_bench) ;;
    *) [ "$good" != 0 ] || status=1 ;; # no test ran
  esac
  verdict=passed
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    case $name in plain | options | decode | errors | memory | latency | wgpu_bench) cat "$logs/$name.log" ;; esac
  else
    verdict=FAILED
    failed=$((failed + 1))
    tail -n 80 "$logs/$name.log"
  fi
  table+=("$(printf '%-11s %-8s %5d s (%d expected)  tests: %d passed, %d failed, %d skipped' \
    "$name" "$verdict" $((SECONDS - began)) "$expected" "$good" "$bad" "$left")")
  echo "${table[-1]}" | tee -a "$out/gpu.log"
done
echo
printf '%s\n' "${table[@]}" | tee -a "$out/gpu.log"
echo "$passed passed, $failed failed" | tee -a "$out/gpu.log"
[ $failed = 0 ]
