"""The command `attn` of an installed package, and `python -m libattn`, which is the same.

`doctor`, `plot` and the plots of `bench --plot` are written in Python. Every other word goes to the
compiled command, which the package holds.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys


def command() -> str | None:
    """The file of the compiled command: ATTN_COMMAND, else the one in this package; or None."""
    named = os.environ.get("ATTN_COMMAND")
    if named:
        return named
    folder = pathlib.Path(__file__).parent
    for name in ("attn", "attn.exe"):
        if (folder / name).exists():
            return str(folder / name)
    return None


def _run(words: list[str]) -> int:
    """Runs the compiled command in place of this process, or, on Windows, within it."""
    file = command()
    if file is None:
        print(
            "attn: this package was built without its command; accepted: doctor, an installed "
            "wheel, or ATTN_COMMAND set to the file of the command",
            file=sys.stderr,
        )
        return 2
    from . import _bench

    if words[:1] == ["bench"] and _bench.wants_plot(words):
        return _bench.main(file, words[1:])
    # The programs that time peers lie in the package.
    environment = {**os.environ, "ATTN_BENCH_FOLDER": str(_bench.folder())}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name != "nt":
            os.execve(file, ["attn", *words], environment)
        return subprocess.run([file, *words], env=environment, check=False).returncode
    except OSError as error:
        print(f"attn: {file}: {error.strerror}", file=sys.stderr)
        return 2


def main() -> int:
    """Runs the words of this process; returns the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["doctor"]:
        from . import _doctor

        return _doctor.main(words[1:])
    if words[:1] == ["plot"]:
        from . import plot

        return plot.main(words[1:])
    return _run(words)


if __name__ == "__main__":
    sys.exit(main())
