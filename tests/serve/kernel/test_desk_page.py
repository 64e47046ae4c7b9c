"""Test the curator's desk: it opens with its address only, on this machine, and accepts its own forms only."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server
from dither.serve.kernel.desk_page import DeskPage, DeskServer, html_table
from dither.serve.kernel.server import unix_listener
from serve.servers import town


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[LocalKernel, DeskServer]]:
    kernel = LocalKernel(load(town(tmp_path / "a")), tmp_path / "l.sqlite", trusted=False, schedule=Schedule(floor=1))
    admin = admin_server(AdminService(kernel, tmp_path / "d.json"), unix_listener(tmp_path / "a.sock", mode=0o600))
    server = DeskServer(DeskPage(tmp_path / "a.sock"), 0)
    for each in (admin, server):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield kernel, server
    server.shutdown()
    server.server_close()
    admin.close()
    kernel.close()


@contextmanager
def opened(server: DeskServer) -> Iterator[httpx.Client]:
    """Return a browser that has opened the address."""
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_address[1]}") as client:
        reply = client.get(server.url)
        assert reply.status_code == 303 and "HttpOnly; SameSite=Strict" in reply.headers["set-cookie"]
        yield client


def form(client: httpx.Client) -> str:
    found = re.search(r'name="form" value="([0-9a-f]{64})"', client.get("/").text)
    assert found is not None
    return found[1]


def test_the_page_shows_datasets_budgets_and_accounts(there: tuple[LocalKernel, DeskServer]) -> None:
    kernel, server = there
    kernel.ledger.add_account("ann", "analyst")
    with opened(server) as client:
        text = client.get("/").text
        assert "town" in text and "ann" in text and "epsilon" in text and "<script" not in text
        assert "default-src 'none'" in client.get("/").headers["content-security-policy"]


def test_its_forms_act_and_each_action_is_a_ledger_row(there: tuple[LocalKernel, DeskServer]) -> None:
    kernel, server = there
    token = kernel.ledger.add_account("ann", "analyst")
    kernel.ledger.record_miss("town", "1x1+1")
    with opened(server) as client:
        key = form(client)
        assert client.post("/unlock", data={"form": key, "dataset": "town"}).status_code == 200
        assert client.post("/revoke", data={"form": key, "name": "ann"}).status_code == 200
        assert client.post("/log", data={"form": key}).status_code == 200
        assert client.post("/unlock", data={"form": key, "dataset": "nowhere"}).status_code == 400
    with pytest.raises(Exception, match="not valid"):
        kernel.ledger.authenticate(token)
    acts = [row.body for row in kernel.ledger.rows() if row.kind == "act"]
    assert len(acts) == 2 and all("uid" in body for body in acts)


@pytest.mark.parametrize("how", ["no cookie", "a wrong cookie", "a wrong secret", "another name", "no name", "a path"])
def test_requests_without_the_secret_are_refused(there: tuple[LocalKernel, DeskServer], how: str) -> None:
    server = there[1]
    secret, base = server.page.secret, f"http://127.0.0.1:{server.server_address[1]}"
    path, headers = {
        "no cookie": ("/", {}), "a wrong cookie": ("/", {"cookie": "desk=guess"}),
        "a wrong secret": ("/?secret=guess", {}), "a path": ("/private", {"cookie": f"desk={secret}"}),
        "another name": ("/", {"cookie": f"desk={secret}", "host": "evil.test"}),
        "no name": (f"/?secret={secret}", {"host": ""}),
    }[how]  # fmt: skip
    reply = httpx.get(base + path, headers=headers)
    assert reply.status_code == 403 and "town" not in reply.text and secret not in reply.text


@pytest.mark.parametrize("how", ["no form", "a wrong form", "no cookie", "another name", "an unknown act", "too long"])
def test_forms_of_other_pages_are_refused(there: tuple[LocalKernel, DeskServer], how: str) -> None:
    kernel, server = there
    token = kernel.ledger.add_account("ann", "analyst")
    with opened(server) as client:
        key = form(client)
        cookie = {"cookie": f"desk={server.page.secret}"}
        path, data, headers = {
            "no form": ("/revoke", {"name": "ann"}, cookie),
            "a wrong form": ("/revoke", {"name": "ann", "form": "0" * 64}, cookie),
            "no cookie": ("/revoke", {"name": "ann", "form": key}, {}),
            "another name": ("/revoke", {"name": "ann", "form": key}, {**cookie, "host": "evil.test"}),
            "an unknown act": ("/register", {"path": "/etc/passwd", "form": key}, cookie),
            "too long": ("/revoke", {"name": "ann", "form": key, "x": "x" * 5000}, cookie),
        }[how]  # fmt: skip
    reply = httpx.post(f"http://127.0.0.1:{server.server_address[1]}{path}", data=data, headers=headers)
    assert reply.status_code == 403 and kernel.ledger.authenticate(token).name == "ann"


def test_it_listens_on_this_machine_only(there: tuple[LocalKernel, DeskServer]) -> None:
    assert there[1].server_address[0] == "127.0.0.1" and there[1].page.secret not in repr(there[1].page)


def test_values_are_escaped() -> None:
    made = html_table([{"<b>": "<script>alert(1)</script>", "x": "' onload='"}])
    assert "<script" not in made and "<b>" not in made and "' onload" not in made


def test_a_missing_kernel_is_reported(tmp_path: Path) -> None:
    server = DeskServer(DeskPage(tmp_path / "none.sock"), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with opened(server) as client:
        assert client.get("/").status_code == 400 and "no kernel answers" in client.get("/").text
    server.shutdown()
    server.server_close()
