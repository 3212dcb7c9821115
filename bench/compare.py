#!/usr/bin/env python3
"""Prints benchmark rows as ratios: the speed of plain cells divided by PyTorch's, and the speed of
options divided by that of the plain cell with the same work. Both were measured in the same run.

usage: bench/compare.py ROWS.jsonl [...] [--peer torch] [--floor 0] [--geomean 0] [--option-floor 0]

Exit status 1 if a ratio is below its floor or the geometric mean of the peer ratios is too low.
"""

import argparse
import math
import sys

from rows import is_plain, ratio_to_peer, read_rows


def of_gemm(row):
    share = row.get("share_of_gemm")
    return f"  {share:.2f} of the matrix product" if share else ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--peer", default="torch")
    parser.add_argument("--floor", type=float, default=0.0, help="for each plain cell")
    parser.add_argument("--geomean", type=float, default=0.0, help="for all plain cells")
    parser.add_argument("--option-floor", type=float, default=0.0, help="for each option")
    args = parser.parse_args()

    short = []
    logs = []
    rows = read_rows(args.rows)
    for row in filter(is_plain, rows):
        ratio = ratio_to_peer(row, args.peer)
        gflops = row["tflops"] * 1e3
        if ratio is None:
            print(f"{row['cell']:48s} {gflops:9.1f} GFLOP/s  no {args.peer}{of_gemm(row)}")
            continue
        logs.append(math.log(ratio))
        print(
            f"{row['cell']:48s} {gflops:9.1f} GFLOP/s  {args.peer} "
            f"{row['peers'][args.peer] * 1e3:9.1f}  ratio {ratio:5.2f}{of_gemm(row)}"
        )
        if not ratio >= args.floor:
            short.append(f"{row['cell']}: {ratio:.2f} of {args.peer}")
    for row in rows:
        if "against" not in row:
            continue
        ratio = row["against"]["ratio"]
        print(
            f"{row['cell']:48s} {row['tflops'] * 1e3:9.1f} GFLOP/s  plain "
            f"{row['against']['tflops'] * 1e3:9.1f}  ratio {ratio:5.2f}"
        )
        if not ratio >= args.option_floor:
            short.append(f"{row['cell']}: {ratio:.2f} of its plain cell")
    for row in rows:
        if row["pass"] == "decode":
            share = row.get("share_of_read")
            of_rate = f"  {share:.2f} of the read rate" if share else ""
            print(f"{row['cell']:48s} {row['gbps']:9.1f} GB/s  {row['us']:9.1f} us{of_rate}")
    geomean = math.exp(sum(logs) / len(logs)) if logs else 0.0
    if logs:
        print(f"{len(logs)} plain cells, geometric mean {geomean:.3f} of {args.peer}")
    if not geomean >= args.geomean:
        short.append(f"geometric mean {geomean:.3f} < {args.geomean}")
    for line in short:
        print("short:", line)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
