"""The cost of `import libattn.torch` beyond torch: no compiler, no sympy, a share of its time."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

REPEATS = 3
SHARE = 0.2  # of the time that torch takes itself: 0.03 on an idle machine, 0.9 with torch._dynamo
HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "libattn.hf")
PROGRAM = """
import json, sys, time
start = time.perf_counter()
import torch, numpy
torch_takes = time.perf_counter() - start
before = set(sys.modules)
start = time.perf_counter()
import libattn.torch
takes = time.perf_counter() - start
print(json.dumps([torch_takes, takes, sorted(set(sys.modules) - before)]))
"""


def test_import_loads_little_beyond_torch():
    runs = []
    for _ in range(REPEATS):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    loaded = set(runs[0][2])
    assert not loaded.intersection(HEAVY), sorted(loaded.intersection(HEAVY))
    foreign = sorted(name for name in loaded if not name.startswith(("libattn", "torch")))
    assert len(foreign) < 20, foreign
    share = statistics.median(takes / torch_takes for torch_takes, takes, _ in runs)
    assert share < SHARE, f"{share:.2f} of the time of torch and NumPy"
