"""A real headless Chromium, driven by its DevTools protocol: the report is looked at as its readers see it.

    python -m tests.browser        # see that there is one. On Debian as root, install it and busybox

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from websocket import WebSocket, create_connection

from harness.core.errors import HarnessError, WaitError
from harness.provision.doctor import apt
from harness.provision.doctor.repair import install

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NEEDED = (
    "install Chromium or Google Chrome, or name one by CHROMIUM=/path; only the tests of the report need it"
)
START_SECONDS = 60
ANSWER_SECONDS = 60


def program() -> str:
    """Raises HarnessError where there is none."""
    given = os.environ.get("CHROMIUM")
    found = shutil.which(given) if given else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        wanted = f"CHROMIUM={given}" if given else " or ".join(NAMES[:3])
        raise HarnessError(f"no browser: {wanted} is not there", hint=f"`make browser`, or {NEEDED}")
    return found


class Page:
    """One page in one browser, of `width` × `height` CSS pixels. `errors` and `requests` since it began."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self.width = width
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._number = itertools.count(1)
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._process = self._start()
        try:
            self._socket = self._connect()
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            size |= {"screenWidth": width, "screenHeight": height}
            self.call("Emulation.setDeviceMetricsOverride", **size)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.call("Emulation.setEmulatedMedia", features=[scheme])
        except BaseException:
            self.close()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-port=0", "--remote-allow-origins=*", "--hide-scrollbars"]
        options += ["--disable-background-networking", f"--user-data-dir={self._folder.name}", "about:blank"]
        return subprocess.Popen(
            [program(), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _connect(self) -> WebSocket:
        """Chromium writes the port that it chose, and the path of the browser's own endpoint."""
        port_file, until = Path(self._folder.name) / "DevToolsActivePort", time.monotonic() + START_SECONDS
        while not (port_file.is_file() and len(port_file.read_text().split()) == 2):
            if self._process.poll() is not None:
                raise HarnessError(
                    f"{program()} ended with exit code {self._process.returncode}", hint=NEEDED
                )
            if time.monotonic() > until:
                raise WaitError("Chromium to listen", "no DevToolsActivePort", START_SECONDS)
            time.sleep(0.05)
        port, path = port_file.read_text().split()
        self._session: str | None = None
        self._socket = create_connection(f"ws://127.0.0.1:{port}{path}", timeout=ANSWER_SECONDS)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return self._socket

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; what happens meanwhile is kept."""
        number = next(self._number)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
        while (message := self._receive()).get("id") != number:
            pass
        if "error" in message:
            raise HarnessError(f"{method}: {message['error']['message']}")
        return dict(message["result"])

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv())
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.errors.append(params["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        return message

    def open(self, file: Path) -> Page:
        """Load a local file to its end."""
        return self.go(file.resolve().as_uri())

    def go(self, url: str) -> Page:
        """Load an address to its end."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        return self.loaded()

    def loaded(self) -> Page:
        """Wait for the end of a load that the page itself began."""
        while not self._loaded:
            self._receive()
        return self

    def submit(self, selector: str) -> Page:
        """Send a form, and load what it leads to."""
        self._loaded = False
        self.ask(f"document.querySelector({json.dumps(selector)}).requestSubmit()")
        return self.loaded()

    def until(self, script: str, seconds: float = 30) -> Any:
        """The value of an expression, once it is true. Raises WaitError."""
        late = time.monotonic() + seconds
        while not (found := self.ask(script)):
            if time.monotonic() > late:
                raise WaitError(script, f"{found!r}; errors: {self.errors}", seconds)
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press and release one key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowRight": 39,
            "Home": 36,
            "End": 35,
        }
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise HarnessError(f"{script}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def type(self, selector: str, text: str) -> None:
        """As a person does: focus, then keys."""
        self.ask(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def picture(self, file: Path, height: int, top: str = "body") -> None:
        """A PNG of `height` pixels of the page, from the top of an element on."""
        y = self.ask(f"document.querySelector({json.dumps(top)}).getBoundingClientRect().top + scrollY")
        clip = {"x": 0, "y": y, "width": self.width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> int:
    """Exit code 0 where there is a browser, else 2 with what to do."""
    release = apt.codename(_os_release()) if os.geteuid() == 0 else None
    try:
        if release is not None and shutil.which("busybox") is None:
            install(["busybox"], release, print)
        try:
            found = program()
        except HarnessError:
            if release is None or "CHROMIUM" in os.environ:
                raise
            install(["chromium"], release, print)
            found = program()
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    print(f"browser: {found}")
    return 0


def _os_release() -> str:
    path = Path("/etc/os-release")
    return path.read_text() if path.is_file() else ""


if __name__ == "__main__":
    sys.exit(main())
