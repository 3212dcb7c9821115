#!/usr/bin/env python3
"""The WebGPU kernels in a browser: writes the page's cases, serves the page on loopback, opens it
in headless Chromium and waits for its results.

usage: tests/webgpu/browser/run.py BUILD [--seconds N]   BUILD is the folder of a build with tests
       tests/webgpu/browser/run.py BUILD --serve         leaves the browser to you: open the address

Prints a line for each case and each kernel that failed, and a count in pytest's words. Exit
status: 0 all passed; 1 something failed, or the end did not come within N seconds (default 600).
The browser is `chromium`, or what ATTN_BROWSER names (`off`: left out, with a line that says so);
what it says itself is in BUILD/browser/browser.log.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TYPES = {".html": "text/html", ".json": "application/json", ".wgsl": "text/plain"}
# On the CPU (SwiftShader), which is the only adapter that a headless Chromium has without a GPU.
ARGUMENTS = ["--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--disable-dev-shm-usage"]


class Server(http.server.ThreadingHTTPServer):
    """Serves the page, its data and the kernels; puts what the page reports into `reports`."""

    def __init__(self, data: Path, kernels: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reports: queue.Queue[dict[str, object]] = queue.Queue()
        self.num_cases = len(json.loads((data / "page.json").read_text())["cases"])
        self.files = {"/": HERE / "page.html"}
        self.files |= {f"/{name}": data / name for name in ("page.json", "page.bin")}
        self.files |= {
            f"/kernels/{path.relative_to(kernels).as_posix()}": path
            for path in kernels.rglob("*.wgsl")
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.server.files.get(self.path)
        if path is None:
            self.send_error(404)
            return
        body = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", TYPES.get(path.suffix, "application/octet-stream"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports.put(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def wait_for_end(server: Server, deadline: float, browser: subprocess.Popen[bytes] | None) -> bool:
    """Prints reports until the last one; returns whether all passed."""
    counts = {True: 0, False: 0}
    cases = 0
    started = time.monotonic()
    ended = ""
    while not ended:
        try:
            report = server.reports.get(timeout=1)
        except queue.Empty:
            if time.monotonic() > deadline:
                ended = "no end in time"
            elif browser is not None and browser.poll() is not None:
                ended = f"the browser ended with status {browser.returncode}"
            continue
        failed = report["failed"] is not False
        if report["kind"] == "end":
            ended = str(report["text"]) if failed else "end"
        else:
            print(f"{'FAILED ' if failed else ''}{report['text']}", flush=True)
            counts[failed] += report["kind"] != "note"
            cases += report["kind"] == "case"
    if ended == "end" and cases < server.num_cases:
        ended = f"{cases} of {server.num_cases} cases were reported"
    if ended != "end":
        print(f"FAILED {ended}")
        counts[True] += 1
    seconds = time.monotonic() - started
    print(f"{counts[True]} failed, {counts[False]} passed in {seconds:.1f}s")
    return counts[True] == 0 and cases > 0


def find_browser() -> str:
    wanted = os.environ.get("ATTN_BROWSER", "chromium")
    found = shutil.which(wanted)
    if found is None:
        sys.exit(f"no browser '{wanted}'; ATTN_BROWSER names another, or leaves it out with 'off'")
    return found


def run_in_browser(server: Server, data: Path, seconds: float) -> bool:
    browser = find_browser()
    with tempfile.TemporaryDirectory() as profile, open(data / "browser.log", "wb") as log:
        process = subprocess.Popen(
            [browser, *ARGUMENTS, f"--user-data-dir={profile}", server.address],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return wait_for_end(server, time.monotonic() + seconds, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="The WebGPU kernels in a browser.")
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--serve", action="store_true", help="leave the browser to you")
    arguments = parser.parse_args()
    if not arguments.serve and os.environ.get("ATTN_BROWSER") == "off":
        print("left out: ATTN_BROWSER=off")
        return 0
    data = arguments.build / "browser"
    data.mkdir(exist_ok=True)
    subprocess.run([arguments.build / "tests/webgpu/attn_webgpu_page", data], check=True)
    server = Server(data, arguments.build / "src/webgpu/kernels")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if not arguments.serve:
        return 0 if run_in_browser(server, data, arguments.seconds) else 1
    print(f"open {server.address}", flush=True)
    return 0 if wait_for_end(server, float("inf"), None) else 1


if __name__ == "__main__":
    sys.exit(main())
