"""500 hostile calls over all public functions: each raises an exception with a useful text or gives
a right result. They run in processes of their own, so that a crash is caught and has a name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "shared" / "hostile_calls.py"
CALLS = 500
PROCESSES = 2  # of half the calls each
SECONDS = 600  # for a process; 500 calls take 20 s on two idle cores


def run(begin):
    command = [sys.executable, str(PROGRAM), str(begin), str(begin + CALLS // PROCESSES)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def test_hostile_calls_are_refused_clearly_or_computed_right():
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = list(pool.map(run, range(0, CALLS, CALLS // PROCESSES)))
    wrong, ended, names = [], Counter(), Counter()
    for done in runs:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        last = lines[-1].get("call", "no call") if lines else "import"
        assert done.returncode == 0, f"{last}: exit status {done.returncode}\n{done.stderr[-3000:]}"
        calls = {line["at"]: line["call"] for line in lines if "call" in line}
        names.update(call.partition("(")[0] for call in calls.values())
        for line in lines:
            if "ended" in line:
                ended[line["ended"]] += 1
                if line["wrong"] is not None:
                    wrong.append(f"{line['at']} {calls[line['at']]}: {line['wrong']}")
    assert not wrong, f"{len(wrong)} of {CALLS} calls:\n" + "\n".join(wrong)
    assert ended.total() == CALLS and min(names.values()) >= 10
    assert ended["computed"] >= CALLS // 10 and ended["refused"] >= CALLS // 2, ended
