#!/usr/bin/env python3
"""Opens every page of the built site in headless Chromium: no error on the console, no failed
request, no request to another server, no broken picture.

usage: tools/docs/browse.py [--browser chromium] [--shots FOLDER] [PAGE...]

PAGE is a path below build/docs, all by default. --shots writes a screenshot of the top of
each page that is given (PAGE#HEADING: from there). Chromium is driven through its pipe (DevTools
protocol), so that only Python is needed.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().parents[2] / "build" / "docs"
BROKEN = """Array.from(document.images, i => (i.loading = "eager", i))
  .filter(i => i.complete && i.naturalWidth === 0).map(i => i.getAttribute("src"))"""
SECONDS = 30


class Browser:
    """A Chromium with one tab; commands and events are JSON that ends with a zero byte."""

    def __init__(self, program: str, folder: str) -> None:
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()

        def connect() -> None:
            os.dup2(from_us, 3)
            os.dup2(to_us, 4)

        # Descriptors above 4, so that neither dup2 closes one that the other still needs.
        from_us, to_us = (os.dup2(fd, fd + 100) for fd in (from_us, to_us))
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        words += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "--window-size=1400,1500"]
        self.process = subprocess.Popen(
            [*words, "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self.output = os.fdopen(to_browser, "wb", buffering=0)
        self.input = os.fdopen(from_browser, "rb", buffering=0)
        self.left = b""
        self.number = 0
        self.session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self.left:
            more = self.input.read(1 << 16)
            if not more:
                raise SystemExit("browse: the browser ended")
            self.left += more
        message, _, self.left = self.left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters, **self.session}
        self.output.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"browse: {method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def complaint(event: dict[str, Any], origin: str) -> str:
    """The error that this event reports, or ""."""
    method, values = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return f"exception: {values['exceptionDetails']['text']}"
    if method == "Runtime.consoleAPICalled" and values["type"] in ("error", "assert", "warning"):
        return f"console: {[argument.get('value') for argument in values['args']]}"
    if method == "Log.entryAdded" and values["entry"]["level"] == "error":
        return f"log: {values['entry']['text']} {values['entry'].get('url', '')}"
    if method == "Network.responseReceived" and values["response"]["status"] >= 400:
        return f"{values['response']['status']}: {values['response']['url']}"
    if method == "Network.requestWillBeSent":
        url = values["request"]["url"]
        if not url.startswith((origin, "data:", "blob:")):
            return f"request to another server: {url}"
    return ""


def check(browser: Browser, origin: str, page: str, shot: Path | None) -> list[str]:
    browser.events.clear()
    # Another heading of the page that is open loads nothing.
    if "loaderId" in browser.call("Page.navigate", url=f"{origin}/{page}"):
        browser.wait_for("Page.loadEventFired")
    found = browser.call("Runtime.evaluate", expression=BROKEN, returnByValue=True)
    wrong = [f"broken picture: {name}" for name in found["result"]["value"]]
    wrong += filter(None, (complaint(event, origin) for event in browser.events))
    if shot:
        shot.parent.mkdir(parents=True, exist_ok=True)
        picture = browser.call("Page.captureScreenshot")
        shot.write_bytes(base64.b64decode(picture["data"]))
    return list(dict.fromkeys(wrong))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--browser", default=os.environ.get("ATTN_BROWSER") or "chromium")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("pages", nargs="*")
    arguments = parser.parse_args()
    if not (SITE / "index.html").exists():
        parser.error("no site in build/docs: ./dev docs builds it")
    handler = functools.partial(Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    every = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
    pages = arguments.pages or [page for page in every if not page.startswith("files/")]
    failed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(arguments.browser, folder)
        watchdog = threading.Timer(SECONDS * len(pages), browser.process.kill)
        watchdog.start()
        for page in pages:
            name = page.replace("#", "_") + ".png"
            shot = arguments.shots / name if arguments.shots else None
            wrong = check(browser, origin, page, shot)
            failed += bool(wrong)
            for text in wrong:
                print(f"{page}: {text}")
        watchdog.cancel()
        browser.close()
    print(f"{len(pages) - failed} pages are right, {failed} are not")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
