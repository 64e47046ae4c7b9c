"""Test the curator's desk in a browser: its secret reaches no other port of the machine, and no address bar."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server
from dither.serve.kernel.desk_page import DeskPage, DeskServer
from dither.serve.kernel.server import unix_listener
from serve.browser import chromium
from serve.servers import town, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]


class Eavesdropper(http.server.BaseHTTPRequestHandler):
    """A taken-over gateway on another port of the machine: it keeps every header that a browser sends."""

    seen: list[str] = []

    def do_GET(self) -> None:
        self.seen.append(f"{self.path}\n{self.headers}")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *given: object) -> None:
        """Log nothing."""


@pytest.fixture
def other_port() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Eavesdropper)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Eavesdropper.seen.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_secret_stays_with_the_page(tmp_path: Path, other_port: str) -> None:
    """A cookie would reach every port of 127.0.0.1; the gateway listens on one of them."""
    kernel = LocalKernel(load(town(tmp_path / "a")), tmp_path / "l.sqlite", trusted=False, schedule=Schedule(floor=1))
    admin = admin_server(AdminService(kernel, tmp_path / "d.json"), unix_listener(tmp_path / "a.sock", mode=0o600))
    desk = DeskServer(DeskPage(tmp_path / "a.sock"), 0)
    for each in (admin, desk):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    kernel.ledger.add_account("ann", "analyst")
    try:
        with chromium(tmp_path / "profile") as browser:
            browser.open(desk.url)
            until(lambda: "ann" in browser.text(), 10)
            assert "town" in browser.text() and "epsilon" in browser.text()
            assert browser.run("location.href") == f"http://127.0.0.1:{desk.server_address[1]}/"
            browser.run("[...document.querySelectorAll('button')].find(b => b.innerText === 'revoke ann').click()")
            until(lambda: "revoked" in browser.text("#result"), 10)
            browser.send("Network.enable")
            assert browser.send("Network.getCookies")["cookies"] == []
            browser.run(f"fetch('{other_port}/read', {{mode: 'no-cors', credentials: 'include'}}).catch(() => 0)")
            browser.new_tab()
            browser.open(f"{other_port}/page")
            assert len(Eavesdropper.seen) >= 1
            assert not any(secret in text for text in Eavesdropper.seen for secret in secrets_of(desk))
            assert not any("cookie" in text.lower() for text in Eavesdropper.seen)
    finally:
        desk.shutdown()
        desk.server_close()
        admin.close()
        kernel.close()


def secrets_of(desk: DeskServer) -> list[str]:
    """Return every secret of a desk."""
    return [value for name, value in vars(desk.page).items() if isinstance(value, str)]
