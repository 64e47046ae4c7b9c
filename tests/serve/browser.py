"""Drive Chromium through its debugging pipe: open pages, fill in fields, press buttons, and read what a person sees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import require
from serve.servers import until

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe")  # fmt: skip


@dataclass
class Browser:
    """A running browser with one tab; messages are JSON, each ended by a zero byte."""

    commands: int
    replies: int
    session: str = ""
    _number: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command to the tab, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._number:
            pass
        assert "error" not in reply, reply
        return reply["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self.replies, 1 << 16)
            assert piece, "the browser ended"
            self._buffer += piece
        text, _, rest = bytes(self._buffer).partition(b"\0")
        self._buffer = bytearray(rest)
        data: dict[str, Any] = json.loads(text)
        return data

    def new_tab(self) -> None:
        """Open a tab, and send all later commands to it."""
        self.session = ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str) -> None:
        """Open an address, and wait until its page is loaded."""
        self.run("window.earlier = true")
        self.send("Page.navigate", url=url)
        until(lambda: self.run("!window.earlier && document.readyState === 'complete'"), 30)

    def run(self, script: str) -> Any:
        """Return the value of a script, or of its promise, in the page."""
        reply = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """Return the text of an element as a person sees it."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def fill(self, selector: str, value: str) -> None:
        """Set the value of a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    def click(self, selector: str) -> None:
        """Press a button."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start Chromium with a profile of its own, and stop it at the end."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    require(program, "a browser: apt-get install chromium")
    commands, replies = os.pipe(), os.pipe()
    # The browser reads commands from descriptor 3 and writes replies to descriptor 4.
    words = ["bash", "-c", f'exec 3<&{commands[0]} 4>&{replies[1]}; exec "$0" "$@"', str(program), *FLAGS,
             f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
    process = subprocess.Popen(words, pass_fds=(commands[0], replies[1]), stderr=subprocess.DEVNULL)
    os.close(commands[0])
    os.close(replies[1])
    try:
        browser = Browser(commands[1], replies[0])
        browser.new_tab()
        yield browser
    finally:
        process.terminate()
        process.wait(20)
        os.close(commands[1])
        os.close(replies[0])
