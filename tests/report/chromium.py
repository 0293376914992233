"""A headless Chromium, driven over a pipe by its DevTools protocol: standard library only.

https://chromedevtools.github.io/devtools-protocol lists the methods. Messages are JSON, each ended by a zero byte;
Chromium reads them from file descriptor 3 and writes to 4.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60.0
DRAWN = "document.documentElement?.dataset.ready === 'yes'"
LOADED = "document.readyState === 'complete'"
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which refuses to start as root; the pages are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
)


def find_chromium():
    """Its path, or None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Chromium:
    """One browser process. `page` opens a page in it; `close` ends it."""

    def __init__(self, path):
        self._folder = tempfile.mkdtemp(prefix="paceline-chromium-")
        commands, self._writes = os.pipe()
        self._reads, answers = os.pipe()
        # Out of the way, so that neither is overwritten when the other becomes 3 or 4.
        far = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (commands, answers)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (0, 1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, place) for fd, place in zip(far, (3, 4), strict=True)]
        command = [path, *_OPTIONS, f"--user-data-dir={self._folder}", "about:blank"]
        environment = {**os.environ, "HOME": self._folder}
        self._pid = os.posix_spawn(path, command, environment, file_actions=actions, setpgroup=0)
        for fd in (commands, answers, quiet, *far):
            os.close(fd)
        self._buffer = b""
        self._number = 0
        self.events = []

    def call(self, method, session=None, **parameters):
        """Call a method and wait for its result. Events that arrive meanwhile are stored."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        until = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reads], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._reads, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("Chromium does not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def page(self, path, *, width=1280, height=900, dark=False, ready=DRAWN):
        """Open a file in a tab of its own, and wait until it is ready: by default, until its charts are drawn."""
        page = Page(self, width, height, dark)
        page.open(path, ready)
        return page

    def close(self):
        os.close(self._writes)
        os.close(self._reads)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


class Page:
    """One tab: its console messages, its network requests and its content."""

    def __init__(self, browser, width, height, dark):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def open(self, path, ready):
        """Show a file, and wait until a JavaScript expression is true."""
        began_s = time.monotonic()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait_for(ready)
        self.opening_s = time.monotonic() - began_s

    def call(self, method, **parameters):
        return self._browser.call(method, session=self._session, **parameters)

    def value(self, expression):
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait_for(self, expression):
        until = time.monotonic() + DEADLINE_S
        while not self.value(expression):
            if time.monotonic() > until:
                raise RuntimeError(f"{expression} did not come true; {self.complaints()}")
            time.sleep(0.01)

    def settle(self):
        """Wait for two frames, until requested changes are drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def complaints(self):
        """Errors, warnings and refusals that the page caused, as text."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"]) for event in self._events(*kinds)]

    def requests(self):
        """The addresses that the page asked for, other than itself."""
        asked = [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith(("file:", "data:"))]

    def _events(self, *methods):
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event for event in mine if event["method"] in methods]

    def box(self, selector):
        """Left, top, width and height of an element in the window, after it was scrolled into view.

        What is above it may still grow when the page is ready: the element is where it stays for two frames.
        """
        look = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        until, found = time.monotonic() + DEADLINE_S, self.value(look)
        while True:
            self.settle()
            before, found = found, self.value(look)
            if found == before:
                return found
            if time.monotonic() > until:
                raise RuntimeError(f"{selector} does not come to rest: {before}, then {found}")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def drag(self, start, end):
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def click(self, selector):
        left, top, width, height = self.box(selector)
        place = (left + width / 2, top + height / 2)
        self.mouse("mousePressed", *place, button="left", clickCount=1)
        self.mouse("mouseReleased", *place, button="left", clickCount=1)

    def key(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def picture(self, path, *, whole=True):
        """Save a screenshot of the page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
