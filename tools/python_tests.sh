#!/usr/bin/env bash
# The Python package as users get it: builds the wheel and runs a session of tools/noxfile.py in each
# environment of tools/python_envs.py, two at a time. Prints what was skipped and why. JUnit reports go
# to the folder ATTN_REPORTS, if it is set.
#
# usage: tools/python_tests.sh [ENVIRONMENT...]     default: those that tools/python_envs.py lists
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$PWD/build/python
names=("$@")
[ $# -gt 0 ] || mapfile -t names < <(python3 tools/python_envs.py list)
rm -rf "$work/site" "$work"/*.log
mkdir -p "$work"
# The list ends with the environments that take longest.
mapfile -t longest_first < <(printf '%s\n' "${names[@]}" | tac)

# Downloads take long and use little of a processor, so they go on while the wheel is built. A session
# waits for an environment that is being made.
for name in "${longest_first[@]}"; do
  case $name in py*) ;; *) python3 tools/python_envs.py make "$name" ;; esac
done >"$work/environments.log" 2>&1 &

echo "== wheel"
./dev wheel || exit 1
.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --target "$work/site" \
  build/wheel/*.whl || exit 1
export NOXFILE=$PWD/tools/noxfile.py WORK=$work
printf '%s\n' "${longest_first[@]}" | xargs -P 2 -I NAME sh -c \
  '.venv/bin/nox -f "$NOXFILE" -s "package(NAME)" >"$WORK/NAME.log" 2>&1'
status=$?
wait
for name in "${names[@]}"; do
  echo "== $name"
  cat "$work/$name.log"
done
# The failures again, where a reader of the end of the log sees them.
for name in "${names[@]}"; do
  grep -nE '^(E  |FAILED|ERROR)|Session .* failed' "$work/$name.log" | head -n 40 | sed "s/^/$name:/"
done
[ $status = 0 ]
