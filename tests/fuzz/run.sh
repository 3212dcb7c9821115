#!/usr/bin/env bash
# Runs each fuzzer for the given number of seconds (default 60) from its seed corpus and prints the
# edges that it covered. Exit code 1 when one found something; the input that causes it is then in
# build/fuzz/findings. Builds the fuzzers with the preset asan.
set -euo pipefail

seconds="${1:-60}"
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
programs="$root/build/asan/tests/fuzz"
work="$root/build/fuzz"

subjects=(npy safetensors problem validate)

cd "$root"
./dev build asan --target "${subjects[@]/#/fuzz_}"

rm -rf "$work/findings"
mkdir -p "$work/findings"
fuzz() {
  local subject=$1 grown="$work/corpus/$1" program="$programs/fuzz_$1"
  mkdir -p "$grown"
  echo "== $subject: $seconds s"
  if ! "$program" -max_total_time="$seconds" -max_len=2048 \
    -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$work/findings/$subject-" "$grown" "$here/corpus/$subject" \
    >"$work/$subject.log" 2>&1; then
    tail -n 40 "$work/$subject.log"
    return 1
  fi
  grep -E "cov: .*DONE|number_of_executed_units|average_exec_per_sec" "$work/$subject.log"
}

# Two at a time.
failed=0
for ((at = 0; at < ${#subjects[@]}; at += 2)); do
  pids=()
  for subject in "${subjects[@]:at:2}"; do
    fuzz "$subject" >"$work/$subject.out" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  for subject in "${subjects[@]:at:2}"; do cat "$work/$subject.out"; done
done
exit "$failed"
