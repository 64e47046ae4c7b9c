"""Test the curator's desk: it opens with its address only, once, on this machine, and listens to its own page only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dither.privacy.kernel import LocalKernel
from dither.privacy.pacing import Schedule
from dither.schema import load
from dither.serve.kernel.admin import AdminService, admin_server
from dither.serve.kernel.desk_page import FILES, DeskPage, DeskServer
from dither.serve.kernel.server import unix_listener
from serve.servers import town


@pytest.fixture
def there(tmp_path: Path) -> Iterator[tuple[LocalKernel, DeskServer]]:
    kernel = LocalKernel(load(town(tmp_path / "a")), tmp_path / "l.sqlite", trusted=False, schedule=Schedule(floor=1))
    admin = admin_server(AdminService(kernel, tmp_path / "d.json"), unix_listener(tmp_path / "a.sock", mode=0o600))
    server = DeskServer(DeskPage(tmp_path / "a.sock"), 0)
    threading.Thread(target=admin.serve_forever, daemon=True).start()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield kernel, server
    server.shutdown()
    server.server_close()
    admin.close()
    kernel.close()


def ask(server: DeskServer, call: str, secret: str, **more: Any) -> httpx.Response:
    """Make a call as the page's script does; `more` replaces headers and arguments."""
    url = f"http://127.0.0.1:{server.server_address[1]}/{call}"
    headers = {"authorization": f"Bearer {secret}", **more.pop("headers", {})}
    return httpx.post(url, json=more, headers=headers)


def opened(server: DeskServer) -> str:
    """Return the token of a browser that has opened the address."""
    address, _, code = server.url.partition("#")
    page = httpx.get(address)
    assert page.status_code == 200 and code not in page.text and "set-cookie" not in page.headers
    return str(ask(server, "sign_in", code).json()["token"])


def test_the_page_shows_datasets_budgets_and_accounts(there: tuple[LocalKernel, DeskServer]) -> None:
    kernel, server = there
    kernel.ledger.add_account("ann", "analyst")
    token = opened(server)
    assert ask(server, "status", token).json()["datasets"][0]["name"] == "town"
    assert (
        "epsilon" in ask(server, "budget", token, dataset="town").text and "ann" in ask(server, "accounts", token).text
    )


def test_its_buttons_act_and_each_action_is_a_ledger_row(there: tuple[LocalKernel, DeskServer]) -> None:
    kernel, server = there
    ann = kernel.ledger.add_account("ann", "analyst")
    kernel.ledger.record_miss("town", "1x1+1")
    token = opened(server)
    assert ask(server, "unlock", token, dataset="town").status_code == 200
    assert ask(server, "revoke", token, name="ann").status_code == 200
    assert ask(server, "log", token).status_code == 200
    assert ask(server, "unlock", token, dataset="nowhere").status_code == 400
    with pytest.raises(Exception, match="not valid"):
        kernel.ledger.authenticate(ann)
    acts = [row.body for row in kernel.ledger.rows() if row.kind == "act"]
    assert len(acts) == 2 and all("uid" in body for body in acts)


def test_the_address_opens_the_desk_once(there: tuple[LocalKernel, DeskServer]) -> None:
    """An address in a browser's history, or on a screen, is of no use to anyone after its first use."""
    server = there[1]
    assert ask(server, "sign_in", "guess").status_code == 403
    token = opened(server)
    again = ask(server, "sign_in", server.page.code)
    assert again.status_code == 403 and "opened before" in again.json()["error"]
    assert (
        ask(server, "status", server.page.code).status_code == 403 and ask(server, "status", token).status_code == 200
    )


def test_of_many_at_once_one_gets_in(there: tuple[LocalKernel, DeskServer]) -> None:
    codes: list[int] = []
    page = there[1]
    racers = [
        threading.Thread(target=lambda: codes.append(ask(page, "sign_in", page.page.code).status_code))
        for _ in range(8)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(codes) == [200] + [403] * 7


FOREIGN = {
    "no token": {"authorization": ""},
    "a wrong token": {"authorization": "Bearer guess"},
    "a token as a cookie": {"authorization": "", "cookie": "desk=TOKEN; token=TOKEN"},
    "another name": {"host": "evil.test"},
    "no name": {"host": ""},
    "another port's page": {"origin": "http://127.0.0.1:1"},
    "an unknown page": {"origin": "null"},
}


@pytest.mark.parametrize("how", FOREIGN)
def test_requests_of_others_are_refused(there: tuple[LocalKernel, DeskServer], how: str) -> None:
    kernel, server = there
    ann = kernel.ledger.add_account("ann", "analyst")
    token = opened(server)
    headers = {name: value.replace("TOKEN", token) for name, value in FOREIGN[how].items()}
    for call in ("status", "revoke"):
        reply = ask(server, call, token, name="ann", headers=headers)
        assert reply.status_code == 403 and "town" not in reply.text and token not in reply.text
    assert kernel.ledger.authenticate(ann).name == "ann"


def test_a_form_of_another_page_is_refused(there: tuple[LocalKernel, DeskServer]) -> None:
    """A form needs no permission of the browser, but carries no header; nor does the desk allow a script's header."""
    kernel, server = there
    ann = kernel.ledger.add_account("ann", "analyst")
    token, url = opened(server), f"http://127.0.0.1:{server.server_address[1]}/revoke"
    assert httpx.post(url, data={"name": "ann", "token": token}).status_code == 403
    asked = {"origin": "http://127.0.0.1:1", "access-control-request-headers": "authorization"}
    reply = httpx.options(url, headers=asked)
    assert reply.status_code >= 400 and not any(name.startswith("access-control") for name in reply.headers)
    assert kernel.ledger.authenticate(ann).name == "ann"


@pytest.mark.parametrize("path", ["/register", "/gap", "/account", "/sign_in/..", "/"])
def test_only_the_desks_calls_exist(there: tuple[LocalKernel, DeskServer], path: str) -> None:
    token = opened(there[1])
    assert (
        ask(there[1], path.removeprefix("/"), token, path="/etc/passwd", name="eve", role="curator").status_code == 400
    )


def test_a_long_body_is_not_read(there: tuple[LocalKernel, DeskServer]) -> None:
    reply = ask(there[1], "revoke", opened(there[1]), name="ann", more="x" * 5000)
    assert reply.status_code == 400 and "name is required" in reply.json()["error"]


def test_the_page_contains_no_secret_and_runs_no_other_script(there: tuple[LocalKernel, DeskServer]) -> None:
    server = there[1]
    base = f"http://127.0.0.1:{server.server_address[1]}"
    for path in FILES:
        reply = httpx.get(base + path)
        assert reply.status_code == 200 and "default-src 'none'; script-src 'self'" in str(reply.headers)
        assert "innerHTML" not in reply.text and "cookie" not in reply.text and "<script>" not in reply.text
        assert not any(secret in reply.text for secret in (server.page.code, server.page.token))
        assert httpx.get(base + path, headers={"host": "evil.test"}).status_code == 404
    for path in ("/private", "/../desk_page.py", "/?x"):
        assert httpx.get(base + path).status_code == 404


def test_it_listens_on_this_machine_only(there: tuple[LocalKernel, DeskServer]) -> None:
    page = there[1].page
    assert there[1].server_address[0] == "127.0.0.1" and page.code not in repr(page) and page.token not in repr(page)


def test_a_missing_kernel_is_reported(tmp_path: Path) -> None:
    server = DeskServer(DeskPage(tmp_path / "none.sock"), 0)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    reply = ask(server, "status", opened(server))
    assert reply.status_code == 400 and "no kernel answers" in reply.json()["error"]
    server.shutdown()
    server.server_close()
