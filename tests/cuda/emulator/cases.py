#!/usr/bin/env python3
"""Runs cases of the family sm90, and of sm80 above dim 256 and in f32, on the emulator.

usage: tests/cuda/emulator/cases.py [--attn FILE] [--seeds N...] [--only TEXT] [--sample N] [--list]

A seed gives an order of warps and of asynchronous copies. Exit status 1 when a case fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import dbias_cases
import documents_cases
import dropout_cases
import f8_cases
import f32_cases
import ordered_cases
import owned_heads_cases
import wide_cases

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TIMEOUT_SECONDS = 900  # with the compilation of a kernel

# The text of a case before and after its colon. Each case runs in bf16 and in f16.
FORWARD = (
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=bhqk"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 mask=bhqk"),
    (
        "",
        "heads_q=2 heads_kv=2 batch=2 len_q=264 len_kv=336 dim_qk=64 dim_vo=64"
        " bias=hqk mask=bhqk",
    ),
    ("", "heads_q=2 heads_kv=2 batch=2 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 mask=qk causal"),
    # Two or three sequences share an entry of the bias or mask.
    (
        "",
        "heads_q=2 heads_kv=2 batch=4 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 mask=b/2hqk causal",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 batch=6 len_q=136 len_kv=208 dim_qk=128 dim_vo=128 bias=b/3hqk"
        " mask=b/2qk",
    ),
    # A mask without a bias is read as bits: tiles that warpgroups skip, published tiles, 64 keys.
    (
        "",
        "heads_q=2 heads_kv=1 len_q=520 len_kv=1040 dim_qk=64 dim_vo=64 mask=qk window_left=100"
        " window_right=20",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 mask=bhqk kv_begin kv_end",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 mask=hqk causal"),
    ("", "heads_q=3 heads_kv=3 len_q=520 len_kv=520 dim_qk=128 dim_vo=128 causal"),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 softcap causal",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap dropout",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 alibi causal"),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 alibi sink"
        " window_left=100",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 kv_begin kv_end"),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128"
        " lengths_q lengths_kv causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=128 dim_vo=128",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 causal dropout",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=256 dim_vo=256 kv_end",
    ),
    (
        "",
        "heads_q=4 heads_kv=1 len_q=64 len_kv=1024 dim_qk=64 dim_vo=64 window_left=100"
        " window_right=20",
    ),
    ("", "heads_q=2 heads_kv=2 len_q=1024 len_kv=1024 dim_qk=64 dim_vo=64 causal"),
    ("scale=8", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=128 dim_vo=128"),
    ("scale=8", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=64 dim_vo=64 causal"),
    ("scale=30", "heads_q=2 heads_kv=2 len_q=264 len_kv=512 dim_qk=256 dim_vo=256"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=80 dim_vo=96"),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=80 dim_vo=96 dtype_out=f32"),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=128 dim_vo=128 dtype_out=f32 causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=256 dim_vo=256 nonfinite_zero"
        " lengths_q lengths_kv",
    ),
)
BACKWARD = (
    ("", "heads_q=2 heads_kv=2 len_q=256 len_kv=256 dim_qk=64 dim_vo=64"),
    ("", "heads_q=2 heads_kv=2 len_q=256 len_kv=256 dim_qk=128 dim_vo=128"),
    ("", "heads_q=4 heads_kv=2 batch=2 len_q=203 len_kv=301 dim_qk=64 dim_vo=64 causal"),
    ("", "heads_q=4 heads_kv=2 batch=2 len_q=203 len_kv=301 dim_qk=128 dim_vo=128 causal"),
    # More tiles of keys than multiprocessors: blocks take one after another. Last: some have no
    # queries.
    ("", "heads_q=45 heads_kv=45 len_q=64 len_kv=300 dim_qk=64 dim_vo=64 causal"),
    ("", "heads_q=70 heads_kv=35 len_q=80 len_kv=500 dim_qk=128 dim_vo=128 window_left=90"),
    (
        "",
        "heads_q=35 heads_kv=35 len_q=64 len_kv=500 dim_qk=64 dim_vo=64 causal diagonal=top_left"
        " deterministic",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=333 len_kv=130 dim_qk=32 dim_vo=64 causal dlse"),
    ("", "heads_q=2 heads_kv=2 len_q=264 len_kv=336 dim_qk=80 dim_vo=96 sink dsink causal"),
    ("", "heads_q=4 heads_kv=2 len_q=300 len_kv=650 dim_qk=64 dim_vo=64 deterministic"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=700 len_kv=450 dim_qk=128 dim_vo=128 causal deterministic"
        " window_left=200",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 accumulate"),
    ("", "heads_q=2 heads_kv=2 len_q=64 len_kv=336 dim_qk=128 dim_vo=96 dtype_grad=f32"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=515 len_kv=515 dim_qk=64 dim_vo=64 window_left=60"
        " window_right=20",
    ),
    (
        "scale=-2",
        "heads_q=2 heads_kv=1 len_q=515 len_kv=260 dim_qk=128 dim_vo=128 causal window_left=60",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128"
        " lengths_q lengths_kv causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64"
        " lengths_kv window_left=60 window_right=10 dtype_grad=f32",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=128 dim_vo=128 deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed len_q=264 len_kv=336 dim_qk=64 dim_vo=64"
        " kv_begin",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=564 len_kv=836 dim_qk=64 dim_vo=64 kv_begin kv_end"
        " deterministic",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=564 len_kv=836 dim_qk=128 dim_vo=128 kv_begin kv_end"
        " causal",
    ),
    (
        "softcap=5",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap kv_end"
        " lengths_kv",
    ),
    (
        "softcap=5 scale=0.3",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 softcap causal",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 softcap dropout alibi",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 alibi causal"),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 alibi dropout sink dsink"
        " window_left=100 deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=bhqk"
        " dtype_bias=bf16 lengths_q lengths_kv",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=hqk dtype_bias=f32"
        " dropout causal",
    ),
    # dbias: stored by TMA if it is of q's type and no sum, summed in global memory if many
    # sequences share it, else by a kernel of its own.
    (
        "",
        "batch=2 heads_q=4 heads_kv=2 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=bhqk"
        " dtype_bias=bf16 dbias causal",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=400 len_kv=336 dim_qk=128 dim_vo=128 bias=hqk"
        " dtype_bias=f16 dbias dropout window_left=100 window_right=20",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 bias=bhqk dtype_bias=bf16 dbias mask=hqk",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=bhqk"
        " dtype_bias=f16 dbias kv_begin lengths_q lengths_kv deterministic",
    ),
    (
        "",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=qk"
        " dtype_bias=bf16 dbias alibi accumulate",
    ),
    (
        "lengths=varied",
        "batch=16 heads_q=2 heads_kv=1 len_q=136 len_kv=200 dim_qk=32 dim_vo=32 bias=b/8hqk"
        " dbias lengths_q lengths_kv causal",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=hqk dbias"
        " deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 mask=bhqk dropout",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 mask=hqk softcap"
        " deterministic",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=hqk"
        " dtype_bias=f16 mask=bhqk kv_begin kv_end",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=264 len_kv=336"
        " dim_qk=64 dim_vo=64 dropout causal",
    ),
    ("", "heads_q=2 heads_kv=2 len_q=256 len_kv=240 dim_qk=256 dim_vo=256"),
    ("", "heads_q=4 heads_kv=2 batch=2 len_q=203 len_kv=301 dim_qk=256 dim_vo=256 causal"),
    ("", "heads_q=2 heads_kv=1 len_q=330 len_kv=200 dim_qk=192 dim_vo=128 causal dlse"),
    ("", "heads_q=2 heads_kv=2 len_q=264 len_kv=336 dim_qk=136 dim_vo=200 sink dsink causal"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=400 len_kv=450 dim_qk=256 dim_vo=256 causal deterministic"
        " window_left=150",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=130 len_kv=200 dim_qk=192 dim_vo=192 deterministic"),
    ("", "heads_q=2 heads_kv=1 len_q=70 len_kv=170 dim_qk=256 dim_vo=256 accumulate"),
    ("", "heads_q=2 heads_kv=2 len_q=64 len_kv=300 dim_qk=192 dim_vo=136 dtype_grad=f32"),
    (
        "",
        "heads_q=2 heads_kv=2 len_q=300 len_kv=500 dim_qk=256 dim_vo=256 window_left=60"
        " window_right=20",
    ),
    (
        "softcap=5",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=bhqk"
        " dtype_bias=bf16 dbias softcap causal",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=128 dim_vo=128 bias=k dtype_bias=f16"
        " softcap alibi dropout",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=256 dim_vo=256 bias=hqk softcap dropout",
    ),
    # Two or three sequences share an entry of the bias or mask.
    (
        "",
        "batch=4 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=b/2hqk"
        " dtype_bias=bf16 dbias",
    ),
    (
        "lengths=varied",
        "batch=6 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=128 dim_vo=128 bias=b/3hqk"
        " mask=b/2qk dtype_bias=f16 dbias lengths_q lengths_kv causal",
    ),
    (
        "",
        "batch=4 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=256 dim_vo=256 bias=b/2hk"
        " mask=b/2k dbias",
    ),
    # A bias or mask that broadcasts queries.
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=64 dim_vo=64 bias=bhk"
        " dtype_bias=bf16 dbias lengths_q lengths_kv",
    ),
    ("", "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=336 dim_qk=128 dim_vo=128 bias=k mask=bk"),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=64 dim_vo=64 bias=hqk mask=bk"
        " dtype_bias=bf16 dbias causal",
    ),
    ("", "batch=2 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=256 dim_vo=256 bias=hk mask=bk"),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=192 dim_vo=192 bias=k mask=hqk"
        " dtype_bias=f16 dbias",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 len_q=164 len_kv=236 dim_qk=256 dim_vo=256"
        " lengths_q lengths_kv causal",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=164 len_kv=236"
        " dim_qk=192 dim_vo=128 deterministic window_left=60",
    ),
    (
        "",
        "batch=2 heads_q=2 heads_kv=1 len_q=264 len_kv=436 dim_qk=256 dim_vo=256 kv_begin kv_end"
        " deterministic",
    ),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed len_q=164 len_kv=236 dim_qk=192 dim_vo=192"
        " kv_end causal alibi",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=130 len_kv=200 dim_qk=256 dim_vo=256 softcap alibi causal",
    ),
    (
        "softcap=5 scale=0.3",
        "heads_q=2 heads_kv=1 len_q=130 len_kv=200 dim_qk=192 dim_vo=128 softcap dropout kv_begin",
    ),
    ("", "heads_q=2 heads_kv=1 len_q=130 len_kv=200 dim_qk=256 dim_vo=256 dropout alibi"),
    (
        "lengths=varied",
        "batch=3 heads_q=2 heads_kv=1 layout_q=packed layout_kv=packed len_q=130 len_kv=200"
        " dim_qk=192 dim_vo=192 dropout causal sink dsink",
    ),
    (
        "lengths=varied",
        "batch=2 heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=256 dim_vo=256 bias=bhqk"
        " dtype_bias=bf16 dbias lengths_q lengths_kv",
    ),
    (
        "",
        "heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=192 dim_vo=128 bias=hqk mask=qk causal"
        " dbias deterministic",
    ),
    (
        "softcap=5",
        "heads_q=2 heads_kv=1 len_q=136 len_kv=208 dim_qk=192 dim_vo=192 mask=hqk softcap dropout"
        " dtype_grad=f32",
    ),
)
PASSES = (
    ("forward", FORWARD + wide_cases.FORWARD),
    ("backward", BACKWARD + wide_cases.CLUSTERS),
    ("backward", wide_cases.BACKWARD),
    ("backward", owned_heads_cases.BACKWARD),
    ("backward", dbias_cases.BACKWARD),
    ("backward", ordered_cases.BACKWARD),
    ("backward", documents_cases.BACKWARD),
    ("backward", dropout_cases.BACKWARD),
)
NAMES = {
    id(wide_cases.BACKWARD): "wide",
    id(owned_heads_cases.BACKWARD): "owned_heads",
    id(dbias_cases.BACKWARD): "dbias",
    id(ordered_cases.BACKWARD): "ordered",
    id(documents_cases.BACKWARD): "documents",
    id(dropout_cases.BACKWARD): "dropout",
}


def cases() -> list[str]:
    """The cases as `attn check --case` reads them."""
    found = []
    for attention_pass, listed in PASSES:
        for data, problem in listed:
            for dtype in ("bf16", "f16"):
                name = NAMES.get(id(listed), "sm90")
                head = f"{attention_pass} name={name} seed={len(found) + 1} {data}".rstrip()
                found.append(f"{head} : dtype={dtype} {problem}")
    types = ("f8e4m3", "f8e5m2")
    for data, problem in f8_cases.FORWARD:
        for dtype, other in (types, types[::-1]):
            head = f"forward name=sm90 seed={len(found) + 1} {data}".rstrip()
            found.append(f"{head} : dtype={dtype} {problem.format(other=other)}")
    f32 = (("forward", f32_cases.FORWARD), ("backward", f32_cases.BACKWARD))
    for attention_pass, listed in f32:
        for data, problem in listed:
            name = "sm90" if attention_pass == "forward" else "sm80"
            head = f"{attention_pass} name={name} seed={len(found) + 1} {data}".rstrip()
            found.append(f"{head} : dtype=f32 {problem}")
    return found


def run(attn: Path, case: str, seed: int) -> bool:
    """One case. What it printed is shown when it failed."""
    command = [HERE / "run.sh", attn, "check", "--device", "cuda", "--case", case]
    environment = os.environ | {"ATTN_EMULATOR_SEED": str(seed), "ATTN_EMULATOR_VERBOSE": "1"}
    if owned_heads := "name=owned_heads " in case:
        environment["ATTN_FAKE_SMS"] = "2"
    try:
        done = subprocess.run(
            command,
            env=environment | {"ATTN_CUDA_FAMILY": "sm90"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"FAILED with seed {seed}: {case}\n  no end in {TIMEOUT_SECONDS} s", flush=True)
        return False
    # The expected kernel ran. With a bias, the forward of sm90 exceeds shared memory, and the plan
    # uses sm80, as the backward does in f32.
    attention_pass = case.split()[0]
    sm80 = attention_pass == "forward" and "bias=" in case and "dtype=f8" not in case
    sm80 |= "name=wide " in case or "name=sm80 " in case
    # An f16 bias that broadcasts queries, with q in f16: ptxas serializes wgmma there.
    sm80 |= "dtype=f16 " in case and "dim_vo=128 bias=k dtype_bias=f16" in case
    kernel = f"attn_{attention_pass}" + ("" if sm80 else "_sm90")
    apart = "name=dbias " not in case or "emulator: attn_backward_dbias_sm90 " in done.stdout
    passed = (
        done.returncode == 0
        and apart
        and "1 passed, 0 failed" in done.stdout
        and f"emulator: {kernel} " in done.stdout
        and not (owned_heads and "emulator: attn_backward_preprocess" in done.stdout)
    )
    if not passed:
        print(f"FAILED with seed {seed}: {case}\n{done.stdout}", flush=True)
    return passed


def main() -> int:
    """Runs every case with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attn", type=Path, default=ROOT / "build/release/cli/attn")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="cases that contain this, such as dtype=f8")
    parser.add_argument("--list", action="store_true", help="print the cases, run none")
    parser.add_argument("--sample", type=int, metavar="N", help="only N cases, evenly spread")
    parser.add_argument("--turn", type=int, default=0, help="which sample")
    parser.add_argument("--rows", type=Path, help="write the results there, as JSON lines")
    arguments = parser.parse_args()
    if arguments.list:
        print(*cases(), sep="\n")
        return 0
    wanted = [case for case in cases() if arguments.only in case]
    if arguments.sample:
        step = -(-len(wanted) // arguments.sample)
        wanted = wanted[arguments.turn % step :: step]
    results = [run(arguments.attn, case, seed) for seed in arguments.seeds for case in wanted]
    if arguments.rows:
        outcomes = [json.dumps({"result": "passed" if result else "failed"}) for result in results]
        arguments.rows.write_text("\n".join(outcomes) + "\n")
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
