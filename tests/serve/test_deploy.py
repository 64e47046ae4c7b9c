"""Test the files in deploy/: the container's steps, the systemd units, and nginx with TLS in front of a gateway."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from conftest import require
from dither import cli
from serve.certificates import Authority
from serve.servers import Town, free_port, serving, town, until

pytestmark = [pytest.mark.tier("test"), pytest.mark.xdist_group("servers")]
ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = ("dither-kernel.service", "dither-gateway.service")


def steps(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a container file in order."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@contextmanager
def fresh_root(folder: Path) -> Iterator[list[str]]:
    """Yield the words that run a command on a fresh copy of this machine's root, which the command may change.

    The copy is an overlay in a mount namespace of its own: nothing outside it changes. It stands for the base image.
    """
    require(os.geteuid() == 0, "a fresh root needs root")
    for name in ("upper", "root"):
        (folder / name).mkdir()
    mount = (
        f"mount -t tmpfs -o size=3g tmpfs {folder}/upper && mkdir {folder}/upper/u {folder}/upper/w && "
        f"mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper/u,workdir={folder}/upper/w {folder}/root && "
        f"mount --rbind /dev {folder}/root/dev && mount -t proc proc {folder}/root/proc"
    )
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    require(probe.returncode == 0, f"this machine allows no overlay mounts: {probe.stderr.strip()}")
    yield ["unshare", "-m", "sh", "-ec", mount + f' && exec chroot {folder}/root sh -ec "$0"']


@pytest.mark.tier("deep")
def test_the_steps_of_the_container_file_run(tmp_path: Path) -> None:
    """COPY and RUN on a fresh root; then both programs of the image answer as the users that they run as."""
    instructions = steps((DEPLOY / "Containerfile").read_text())
    assert {name for name, _ in instructions} <= {"FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    base = "python3 -c 'import sys; assert sys.version_info[:2] == (3, 11)'"  # what FROM promises
    script = [f"export PATH={sys.base_prefix}/bin:$PATH", base, "rm -rf /opt/dither"]
    for name, words in instructions:
        if name == "COPY":
            *sources, target = shlex.split(words)
            into = target if target.endswith("/") or len(sources) > 1 else str(Path(target).parent)
            script.append(f"mkdir -p {into} && cp -r {' '.join(str(ROOT / each) for each in sources)} {into}")
        elif name == "RUN":
            script.append(words)
    checks = [
        "test ! -e /usr/src/dither && test $(stat -c %a:%U /var/lib/dither) = 700:dither",
        "test $(stat -c %a:%U /var/lib/dither-gateway) = 700:dither-gateway",
        "/opt/dither/bin/dither kernel --help >/dev/null && /opt/dither/bin/dither gateway --help >/dev/null",
        "id -Gn dither | grep -q dither-gateway && ! id -Gn dither-gateway | grep -qw dither",
        "echo BUILT",
    ]
    with fresh_root(tmp_path) as run:
        done = subprocess.run(
            [*run, "\n".join(script + checks)], capture_output=True, text=True, cwd=ROOT, timeout=900, check=False
        )
    assert done.returncode == 0 and "BUILT" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]
    assert not Path("/opt/dither").exists() and not Path("/var/lib/dither").exists(), "nothing outside the copy changed"


def test_the_image_runs_as_a_user_of_its_own() -> None:
    names = dict(steps((DEPLOY / "Containerfile").read_text()))
    assert names["USER"] == "dither" and "dither" in names["ENTRYPOINT"]
    assert not re.search(r"(?i)token|password|secret", (DEPLOY / "Containerfile").read_text())


def unit_command(name: str) -> list[str]:
    """Return the command that a unit starts."""
    found = re.search(r"^ExecStart=(.*)$", (DEPLOY / name).read_text(), flags=re.M)
    assert found is not None
    return shlex.split(found[1])


def test_the_units_are_valid(tmp_path: Path) -> None:
    """`systemd-analyze verify`, with the program at its place and the two users known."""
    analyze = shutil.which("systemd-analyze")
    require(analyze, "systemd-analyze: apt-get install systemd")
    (tmp_path / "dither").write_text("#!/bin/sh\n")
    (tmp_path / "dither").chmod(0o755)
    for name in UNITS:
        text = (DEPLOY / name).read_text().replace("/opt/dither/bin/dither", str(tmp_path / "dither"))
        (tmp_path / name).write_text(text)
    done = subprocess.run([str(analyze), "verify", *(str(tmp_path / name) for name in UNITS)], capture_output=True,
                          text=True, check=False)  # fmt: skip
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "dither" in line]
    assert done.returncode == 0 and said == [], done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text((tmp_path / UNITS[0]).read_text().replace("ExecStart=", "ExecStrat="))
    done = subprocess.run([str(analyze), "verify", str(broken)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 or "ExecStrat" in done.stderr, "a mistake would be seen"


def test_the_commands_of_the_units_have_known_options(tmp_path: Path) -> None:
    for name in UNITS:
        words = unit_command(name)
        offered = CliRunner().invoke(cli.app, [words[1], "--help"], env={"COLUMNS": "200"}).output
        assert all(word in offered for word in words if word.startswith("--")), (words, offered)
        assert words[0] == "/opt/dither/bin/dither"
        text = (DEPLOY / name).read_text()
        for line in ("NoNewPrivileges=true", "ProtectSystem=strict", "UMask=0077", "CapabilityBoundingSet=\n"):
            assert line in text


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("t")
    with serving(
        town(folder / "data"), folder / "s", "--proxy", "127.0.0.1", "--rate", "500", "--burst", "500"
    ) as made:
        made.account("ann")
        yield made


@contextmanager
def nginx(folder: Path, gateway: str, certificate: tuple[Path, Path]) -> Iterator[tuple[int, int]]:
    """Run nginx with the example site, as it is except for its ports, files and upstream; yield its two ports."""
    program = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)
    require(program, "nginx: apt-get install nginx-light")
    plain, secure = free_port(), free_port()
    site = (DEPLOY / "nginx.conf").read_text()
    for before, after in (
        ("127.0.0.1:8765", gateway.removeprefix("http://")), ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{secure} ssl http2;"), ("dither.example.org", "localhost"),
        ("/etc/ssl/dither/site.pem", str(certificate[0])), ("/etc/ssl/dither/site.key", str(certificate[1])),
        ("/var/log/nginx/dither.log", str(folder / "dither.log")),
    ):  # fmt: skip
        assert before in site, before
        site = site.replace(before, after)
    main = f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\n{site}\n}}\n"
    (folder / "nginx.conf").write_text(main)
    words = [str(program), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    checked = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(words)
    try:
        until(lambda: socket.create_connection(("127.0.0.1", secure), 1).close() is None, 20)
        yield plain, secure
    finally:
        process.terminate()
        process.wait(20)


def test_nginx_serves_the_gateway_over_tls(there: Town, tmp_path: Path) -> None:
    """A query through the example site: TLS, HSTS, the redirect, the client's address, and a log without queries."""
    tmp_path.chmod(0o755)
    authority = Authority.made(tmp_path, "ours")
    trusting = ssl.create_default_context(cafile=str(authority.path))
    with nginx(tmp_path, there.url, authority.sign("site", client=False)) as (plain, secure):
        url, headers = f"https://localhost:{secure}", {"authorization": f"Bearer {there.tokens['ann']}"}
        asked = {"dataset": "town", "query": "SELECT COUNT(*) AS hush FROM people", "epsilon": 1}
        with httpx.Client(verify=trusting, headers=headers, timeout=60) as client:
            reply = client.post(f"{url}/v1/answer?hush", json=asked)
            assert reply.status_code == 200 and reply.json()["rows"]
            assert reply.headers.get_list("strict-transport-security") == ["max-age=31536000; includeSubDomains"]
            assert "default-src 'none'" in reply.headers["content-security-policy"]
            assert client.get(f"{url}/health/ready").json() == {"status": "ready"}
            assert client.get(f"{url}/v1/nothing").headers["strict-transport-security"], "also on errors"
            moved = client.get(f"http://127.0.0.1:{plain}/v1/datasets", headers={"host": "localhost"})
            assert moved.status_code == 301 and moved.headers["location"] == "https://localhost/v1/datasets"
            # The gateway believes the proxy's word about the client, and nginx does not pass on a client's own.
            client.get(f"{url}/v1/nothing", headers={"x-forwarded-for": "203.0.113.9"})
        log = (tmp_path / "dither.log").read_text()
        assert "/v1/answer" in log and "hush" not in log and there.tokens["ann"] not in log
        access = (there.state / "gateway" / "access.jsonl").read_text()
        assert '"route": "/v1/answer"' in access and "203.0.113.9" not in access and "hush" not in access
