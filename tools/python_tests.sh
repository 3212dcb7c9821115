#!/usr/bin/env bash
# The Python package as users get it: builds the wheel, installs it in a fresh environment of each
# Python, times the install up to the first result and the import, and runs python/tests with NumPy
# alone and with several PyTorch. Prints what was skipped and why.
#
# usage: tools/python_tests.sh [ENVIRONMENT...]     default: those that tools/python_envs.py lists
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/build/python
seconds_to_first_result=30
milliseconds_to_import=150
failed=0

# How much each environment runs: files, and which share of each test's sets of parameters.
numpy_files=(python/tests/test_*.py)
torch_files=("${numpy_files[@]/*train_gpt*/}" python/tests/torch)  # trains in the newest alone
torch_only=(python/tests/test_bad_input.py python/tests/torch)
declare -A files=(
  [py3.10]="${numpy_files[*]}" [py3.11]="${numpy_files[*]}" [py3.12]="${numpy_files[*]}"
  [py3.13]="${numpy_files[*]}" [torch2.4]="${torch_files[*]}"
  [torch2.8]="${torch_only[*]}" [torch2.11]="${torch_only[*]}" [torch2.13]="${torch_only[*]}"
  [torch2.6]="${torch_files[*]} python/tests/hf" [newest]="python/tests"
)
declare -A sample=(
  [py3.11]=4 [py3.12]=4 [py3.13]=4
  [torch2.4]=2 [torch2.6]=6 [torch2.8]=12 [torch2.11]=12 [torch2.13]=12
)

say() { echo "== $*"; }

fail() {
  echo "FAILED: $*"
  failed=$((failed + 1))
}

# Runs in a process of its own with the package of the wheel, from outside of the tree.
python_ms() { (cd "$work" && "$1" -c "$2"); }

first_result='
import numpy, libattn
x = numpy.ones((1, 4, 2, 8), numpy.float32)
assert abs(libattn.attention(x, x, x) - 1).max() < 1e-6'
import_ms='
import time; start = time.perf_counter(); import libattn
print(round(1000 * (time.perf_counter() - start)))'

# The median of five imports in new processes, in milliseconds.
import_time() {
  local turn
  for turn in 1 2 3 4 5; do python_ms "$1" "$import_ms"; done | sort -n | sed -n 3p
}

# The wheel with what it asks for into a new environment. $1 name, $2 the Python to make it with.
fresh() {
  local name=$1 python=$work/$1/bin/python started took import
  rm -rf "${work:?}/$name"
  "$2" -m venv "$work/$name" || return 1
  started=$(date +%s%N)
  "$python" -m pip install -q --disable-pip-version-check "$wheel" &&
    python_ms "$python" "$first_result" || return 1
  took=$((($(date +%s%N) - started) / 1000000))
  import=$(import_time "$python")
  echo "$name: install and first result $took ms, import $import ms"
  [ $took -lt $((1000 * seconds_to_first_result)) ] ||
    fail "$name: more than $seconds_to_first_result s to the first result"
  [ "$import" -lt $milliseconds_to_import ] ||
    fail "$name: the import takes more than $milliseconds_to_import ms"
}

# The tests of environment $1 in Python $2; the package is the wheel's. Threads that wait don't spin:
# there are two of these at once, for which PyTorch's compiler has a folder in each.
run_tests() {
  # shellcheck disable=SC2086
  PYTHONPATH=$work/site ATTN_LIBRARY='' OMP_WAIT_POLICY=passive \
    TORCHINDUCTOR_CACHE_DIR=$work/$1.inductor "$2" -m pytest -q -rfE \
    -p no:cacheprovider --durations 5 --sample "${sample[$1]:-1}" ${files[$1]} || fail "$1: tests"
}

one() {
  local name=$1 python began=$SECONDS
  if ! python=$(python3 tools/python_envs.py interpreter "$name"); then
    echo "$name: skipped, see above"
    return
  fi
  case $name in
    py*)
      fresh "$name" "$python" || {
        fail "$name: install"
        return
      }
      python=$work/$name/bin/python
      # shellcheck disable=SC2046
      "$python" -m pip install -q --disable-pip-version-check \
        $(python3 tools/python_envs.py packages "$name") || fail "$name: packages of the tests"
      ;;
    *)
      python=$(python3 tools/python_envs.py make "$name") || {
        fail "$name: environment"
        return
      }
      ;;
  esac
  run_tests "$name" "$python"
  if [ "$name" = newest ]; then
    "$python" -m mypy || fail "mypy --strict"
  fi
  say "$name took $((SECONDS - began)) s"
}

# Environments that no other lane has taken, one after the other, each with a log; how many checks
# failed is the exit status.
lane() {
  local name
  for name in "${longest_first[@]}"; do
    mkdir "$work/taken/$name" 2>/dev/null || continue
    one "$name" >"$work/$name.log" 2>&1
  done
  exit $failed
}

names=("$@")
[ $# -gt 0 ] || mapfile -t names < <(python3 tools/python_envs.py list)
rm -rf "$work/taken"
mkdir -p "$work/taken"
# The list ends with those that take longest.
mapfile -t longest_first < <(printf '%s\n' "${names[@]}" | tac)

# Downloads take long and little processor: they go on while the wheel is built. A lane that comes to
# an environment in the making waits for it, and tells of what went wrong.
for name in "${longest_first[@]}"; do
  case $name in py*) ;; *) python3 tools/python_envs.py make "$name" ;; esac
done >"$work/environments.log" 2>&1 &
environments=$!

say "wheel"
./dev wheel || exit 1
wheel=$(ls "$root"/build/wheel/*.whl)
rm -rf "$work/site"
"$root/.venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps \
  --target "$work/site" "$wheel" || exit 1
lane &
first=$!
lane &
second=$!
wait $first || failed=$((failed + $?))
wait $second || failed=$((failed + $?))
wait $environments
for name in "${names[@]}"; do
  say "$name"
  cat "$work/$name.log"
done
# What failed once more, where a reader of the end of the log sees it: each failed test with its
# error, and the checks of this script.
for name in "${names[@]}"; do
  grep -nE '^(E  |FAILED|ERROR)' "$work/$name.log" | head -n 40 | sed "s/^/$name:/"
done
echo "python: $failed checks failed"
[ $failed = 0 ]
