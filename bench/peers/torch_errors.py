"""Errors of results against float64, compared with those of peers on the same inputs.

The largest error of millions of elements is one random draw: it differs by tens of percent between
kernels with the same roundings. To compare two kernels, use the root mean square or the largest
error of many draws.
"""

from __future__ import annotations

from typing import Any

import torch
from torch_cells import Cell, inputs_of
from torch_oracle import Oracle

Errors = dict[str, tuple[float, float]]  # by result: the largest error, the root mean square
DRAWS = 16


def compared(found: Errors, fa2: Errors) -> dict[str, Any]:
    """The error fields of a row, compared with fa2's."""
    return {
        "fa2": {name: fa2[name][0] for name in fa2},
        "ratio_to_fa2": max(found[name][0] / fa2[name][0] for name in fa2),
        "rms": {name: found[name][1] for name in fa2},
        "rms_ratio_to_fa2": max(found[name][1] / fa2[name][1] for name in fa2),
    }


def error_of(
    oracle: Oracle, results: dict[str, torch.Tensor], fa2: Errors | None
) -> dict[str, Any]:
    """Errors of all results, and their ratios to the naive errors and to fa2's."""
    found = oracle.errors(results)
    naive = {
        name: float((oracle.naive[name].double() - oracle.exact[name].double()).abs().max())
        for name in found
    }
    wide = [name for name in found if name not in ("lse", "dsink")]  # results of 16 bits
    out: dict[str, Any] = {
        "max_abs": max(found[name][0] for name in wide),
        "ratio_to_naive": max(found[name][0] / naive[name] for name in wide),
        "of": {name: largest for name, (largest, _) in found.items()},
    }
    return {**out, **compared(found, fa2)} if fa2 else out


def errors_over_draws(
    cell: Cell, device: str, makers: list[type[Any]], draws: int = DRAWS
) -> dict[str, dict[str, Any]]:
    """Errors of all heads over this many draws of the inputs, by pass. The first contender is
    libattn, which is compared with flash-attention 2 if that is among the others."""
    found: dict[tuple[str, str], list[Errors]] = {}
    for draw in range(draws):
        x = inputs_of(cell, device, draw)
        oracle = Oracle(cell, x, backward=True, all_heads=True)
        for made in makers:
            contender = made(cell, x)
            with contender.turn():
                for pass_ in cell.passes:
                    contender.calls(pass_)[0]()
                    errors = oracle.errors(contender.results(pass_))
                    found.setdefault((pass_, made.name), []).append(errors)
    rows = {}
    for pass_ in cell.passes:
        ours, *_ = (joined(found[pass_, made.name]) for made in makers)
        error: dict[str, Any] = {"of": {name: largest for name, (largest, _) in ours.items()}}
        if (pass_, "fa2") in found:
            error |= compared(ours, joined(found[pass_, "fa2"]))
        error["rms_of_peers"] = {
            made.name: {name: rms for name, (_, rms) in joined(found[pass_, made.name]).items()}
            for made in makers[1:]
        }
        rows[pass_] = {"draws": draws, "error": error}
    return rows


def joined(draws: list[Errors]) -> Errors:
    """The largest error and the root mean square over draws of the same size."""
    return {
        name: (
            max(errors[name][0] for errors in draws),
            (sum(errors[name][1] ** 2 for errors in draws) / len(draws)) ** 0.5,
        )
        for name in draws[0]
    }
