"""Reads benchmark rows (JSON lines, see bench/README.md). The last row of a cell is used."""

import json
import pathlib


def read_rows(paths):
    """Rows of the files by cell name, in the order of first appearance."""
    rows = {}
    for path in paths:
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                rows[(row["device"], row["threads"], row["cell"])] = row
            except (ValueError, KeyError) as error:
                raise SystemExit(f"{path}:{number}: not a benchmark row: {error}") from error
    return list(rows.values())


def is_plain(row):
    return row["cell"].startswith("plain/")


def ratio_to_peer(row, peer):
    """This row's speed over the peer's in the same run; None if the peer was not measured."""
    speed = row["peers"].get(peer)
    return row["tflops"] / speed if speed else None
