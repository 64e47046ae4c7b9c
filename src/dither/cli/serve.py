"""`dither kernel`, `dither gateway`, `dither serve`, `dither curator`: options by flag, environment or file."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dither.errors import DitherError, InvalidParameter
from dither.serve.operations.permissions import secret_file
from dither.serve.operations.supervisor import ManagedProcess, Supervisor, bare_environment, group_of
from dither.serve.transport.socket_client import MutualTls

app = typer.Typer(add_completion=False)
curator = typer.Typer(add_completion=False, no_args_is_help=True, help="Administer a kernel through its own socket.")
app.add_typer(curator, name="curator")


def _settled(context: typer.Context, path: Path | None) -> Path | None:
    """Puts a file's settings below flags and environment."""
    if path is None:
        return None
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        raise InvalidParameter(f"{path} cannot be read as YAML") from None
    known = {parameter.name for parameter in context.command.params} - {"config", "as_json"}
    if not isinstance(given, dict) or not set(given) <= known:
        raise InvalidParameter(f"{path} must hold a mapping of: {', '.join(sorted(filter(None, known)))}")
    context.default_map = {**(context.default_map or {}), **given}
    return path


AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
Config = Annotated[
    Path | None,
    typer.Option(
        envvar="DITHER_CONFIG", callback=_settled, is_eager=True, help="a YAML file with any of these options"
    ),
]
Descriptions = Annotated[list[Path], typer.Argument(help="dataset descriptions", show_default=False)]
State = Annotated[Path, typer.Option(envvar="DITHER_STATE", help="where ledger, sockets and logs are kept")]
LedgerPlace = Annotated[
    str, typer.Option(envvar="DITHER_LEDGER", help="a file or, in the environment only, a database's address")
]
Slots = Annotated[int, typer.Option(envvar="DITHER_SLOTS", min=1, max=64, help="answers of a dataset at once")]
Waiting = Annotated[int, typer.Option(envvar="DITHER_WAITING", min=1, help="questions that may wait for a dataset")]
Each = Annotated[int, typer.Option(envvar="DITHER_ACCOUNT_QUESTIONS", min=1, help="questions of one account at once")]
Floor = Annotated[int, typer.Option(envvar="DITHER_FLOOR", min=1, help="milliseconds that every answer takes at least")]
Misses = Annotated[int, typer.Option(envvar="DITHER_MISSES", min=1, help="late answers after which a dataset locks")]
Host = Annotated[str, typer.Option(envvar="DITHER_HOST", help="the address to listen on")]
Port = Annotated[int, typer.Option(envvar="DITHER_PORT", min=0, max=65535, help="the port; 0 takes a free one")]
Certificate = Annotated[Path | None, typer.Option(envvar="DITHER_CERTIFICATE", help="a file: this side's certificate")]
Key = Annotated[Path | None, typer.Option(envvar="DITHER_KEY", help="a file: the certificate's private key")]
Authority = Annotated[Path | None, typer.Option(envvar="DITHER_AUTHORITY", help="a file: who signs the other side's")]
Rate = Annotated[float, typer.Option(envvar="DITHER_RATE", min=0.01, help="requests of one account a second")]
Burst = Annotated[int, typer.Option(envvar="DITHER_BURST", min=1, help="requests of one account at once")]
Tick = Annotated[
    int,
    typer.Option(
        envvar="DITHER_TICK", min=0, max=1000, help="replies leave after whole multiples of so many milliseconds"
    ),
]
Reports = Annotated[
    Path | None, typer.Option(envvar="DITHER_REPORTS", help="a folder of reports of audits, for whoever has an account")
]
Oidc = Annotated[
    Path | None, typer.Option(envvar="DITHER_OIDC", help="a YAML file: whose ID tokens stand for which accounts")
]
Desk = Annotated[Path, typer.Option("--socket", envvar="DITHER_ADMIN_SOCKET", help="the kernel's admin socket")]
Name = Annotated[str, typer.Argument(help="the account", show_default=False)]
Dataset = Annotated[str, typer.Argument(help="the dataset", show_default=False)]

STATE = Path("dither-state")
DESK = STATE / "private" / "admin.sock"


def _ready(what: str, where: str, as_json: bool) -> None:
    typer.echo(json.dumps({what: where}) if as_json else f"{what}: {where}")


def _check_installed(command: str) -> None:
    """Said once, before anything is started: a gateway that lacks its libraries would be started again for ever."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "httpx")):
        raise DitherError(f"'dither {command}' needs more: pip install 'dither[server]'")


def _no_secret(ledger: str) -> str:
    """Refuses a database's address on the command line, where everyone on the machine can read it."""
    if "://" in ledger and any(ledger in word for word in sys.argv):
        raise InvalidParameter("give a database's address in the environment (DITHER_LEDGER): arguments are public")
    return ledger


@app.command()
def kernel(
    descriptions: Descriptions,
    state: State = STATE,
    ledger: LedgerPlace = "",
    socket: Annotated[
        Path | None,
        typer.Option(envvar="DITHER_SOCKET", help="where gateways call; in the state directory unless given"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(envvar="DITHER_GROUP", help="the group of the gateway's user, which may open that socket"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(envvar="DITHER_LISTEN", help="HOST:PORT for gateways on other machines; needs the three files"),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    slots: Slots = 2,
    waiting: Waiting = 64,
    account_questions: Each = 8,
    floor: Floor = 500,
    misses: Misses = 3,
    oidc: Oidc = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Hold the data and the budgets; answer typed plans from gateways."""
    from dither.privacy.pacing import Schedule
    from dither.serve.kernel.fair_queue import QueueLimits
    from dither.serve.kernel.process import KernelSettings, Tls, run_kernel

    tls = None
    if listen is not None:
        host, port = _address(listen)
        tls = Tls(host, port, *_files(certificate, key, authority))
    settings = KernelSettings(
        tuple(descriptions), state, _no_secret(ledger), socket, None, tls, group,
        Schedule(floor=floor, most_misses=misses), QueueLimits(slots, waiting, account_questions), slots, oidc,
    )  # fmt: skip
    _ready("kernel", str(settings.socket_path), as_json)
    run_kernel(settings)


@app.command()
def gateway(
    kernel: Annotated[str, typer.Option(envvar="DITHER_KERNEL", help="the kernel's socket, or tls://HOST:PORT")] = str(
        STATE / "kernel.sock"
    ),
    state: Annotated[
        Path, typer.Option(envvar="DITHER_GATEWAY_STATE", help="where the last seen end of the ledger is kept")
    ] = Path("dither-gateway"),
    host: Host = "127.0.0.1",
    port: Port = 8765,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    https_certificate: Annotated[
        Path | None, typer.Option(envvar="DITHER_HTTPS_CERTIFICATE", help="a file: the certificate that analysts see")
    ] = None,
    https_key: Annotated[Path | None, typer.Option(envvar="DITHER_HTTPS_KEY", help="a file: its private key")] = None,
    rate: Rate = 20,
    burst: Burst = 60,
    tick: Tick = 100,
    reports: Reports = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Face the analysts: accounts, SQL, the web page; without data, and without a way to it."""
    _check_installed("gateway")
    from dither.serve.gateway.app import Settings
    from dither.serve.gateway.process import GatewaySettings, run_gateway
    from dither.serve.gateway.rate_limits import Rate as Limit

    address: str | MutualTls = kernel
    if kernel.startswith("tls://"):
        where, at = _address(kernel.removeprefix("tls://"))
        address = MutualTls(where, at, *_files(certificate, key, authority))
    if https_key is not None:
        secret_file(https_key)
    limits = Settings(account=Limit(rate, burst), tick=tick, reports=reports)
    _ready("gateway", f"{host}:{port}", as_json)
    run_gateway(GatewaySettings(address, state, host, port, https_certificate, https_key, limits))


@app.command()
def serve(
    descriptions: Descriptions,
    state: State = STATE,
    ledger: LedgerPlace = "",
    host: Host = "127.0.0.1",
    port: Port = 8765,
    slots: Slots = 2,
    waiting: Waiting = 64,
    account_questions: Each = 8,
    floor: Floor = 500,
    misses: Misses = 3,
    rate: Rate = 20,
    burst: Burst = 60,
    tick: Tick = 100,
    reports: Reports = None,
    oidc: Oidc = None,
    gateway_user: Annotated[
        str | None, typer.Option(envvar="DITHER_GATEWAY_USER", help="run the gateway as this user; needs root")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Start a kernel and a gateway on this machine, each a process of its own, and keep them running."""
    _check_installed("serve")
    state = state.absolute()
    own = state / "gateway"
    own.mkdir(parents=True, exist_ok=True)
    if gateway_user is not None:
        import shutil

        shutil.chown(own, gateway_user)
    numbers = {"slots": slots, "waiting": waiting, "account-questions": account_questions}
    numbers |= {"floor": floor, "misses": misses}
    if ledger:
        os.environ["DITHER_LEDGER"] = _no_secret(ledger)  # a child reads it there; arguments are public
    me = [sys.executable, "-m", "dither"]
    kernel_words = [*me, "kernel", *(str(path.absolute()) for path in descriptions), "--state", str(state)]
    kernel_words += [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    kernel_words += ["--oidc", str(oidc.absolute())] if oidc else []
    kernel_words += ["--group", str(group_of(gateway_user))] if gateway_user else []
    gateway_words = [*me, "gateway", "--kernel", str(state / "kernel.sock"), "--state", str(own), "--host", host]
    gateway_words += ["--port", str(port), "--rate", str(rate), "--burst", str(burst), "--tick", str(tick)]
    gateway_words += ["--reports", str(reports.absolute())] if reports else []
    children = [
        ManagedProcess("kernel", kernel_words, _for_the_kernel(), state),
        ManagedProcess("gateway", gateway_words, bare_environment(), own, gateway_user),
    ]
    hint = f"dither curator account NAME --socket {state / 'private' / 'admin.sock'}"
    typer.echo(json.dumps({"state": str(state)}) if as_json else f"accounts: {hint}")
    Supervisor(children).run()


def _for_the_kernel() -> dict[str, str]:
    """This process's environment, but for what speaks of `serve` itself: a file of its settings, another socket."""
    return {name: value for name, value in os.environ.items() if name not in ("DITHER_CONFIG", "DITHER_SOCKET")}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidParameter("an address is HOST:PORT")
    return host, int(port)


def _files(certificate: Path | None, key: Path | None, authority: Path | None) -> tuple[Path, Path, Path]:
    if certificate is None or key is None or authority is None:
        raise InvalidParameter("TLS between the servers needs --certificate, --key and --authority")
    return certificate, secret_file(key), authority


# --- The curator ---


def _desk(at: Path, call: str, as_json: bool, /, **given: str) -> None:
    """Calls the kernel's desk and prints what it says."""
    from dither.serve.kernel.admin import call_admin

    data = call_admin(at, call, **given)
    typer.echo(json.dumps(data, indent=2) if as_json else _text(data))


def _text(data: Any, indent: str = "") -> str:
    if isinstance(data, dict):
        return "\n".join(f"{indent}{name}: {_inner(value, indent)}" for name, value in data.items())
    if isinstance(data, list):
        return "\n".join(_text(each, indent) + "\n" for each in data).rstrip() or f"{indent}none"
    return f"{indent}{data}"


def _inner(value: Any, indent: str) -> str:
    return "\n" + _text(value, indent + "  ") if isinstance(value, dict | list) else str(value)


@curator.command()
def status(socket: Desk = DESK, as_json: AsJson = False) -> None:
    """The datasets, their late answers, and the end of the ledger."""
    _desk(socket, "status", as_json)


@curator.command()
def register(
    description: Annotated[Path, typer.Argument(help="a dataset description on the kernel's machine")],
    socket: Desk = DESK,
    as_json: AsJson = False,
) -> None:
    """Open a dataset, or a new version of one, on a running kernel."""
    _desk(socket, "register", as_json, path=str(description.absolute()))


@curator.command()
def account(
    name: Name,
    role: Annotated[str, typer.Option(help="analyst, auditor or curator")] = "analyst",
    days: Annotated[int, typer.Option(min=1, max=3650, help="days until the token expires")] = 90,
    socket: Desk = DESK,
    as_json: AsJson = False,
) -> None:
    """Make an account, or a new token for it; the token is shown this once and kept nowhere."""
    _desk(socket, "account", as_json, name=name, role=role, days=str(days))


@curator.command()
def accounts(socket: Desk = DESK, as_json: AsJson = False) -> None:
    """Every account, its role, and whether its token is valid."""
    _desk(socket, "accounts", as_json)


@curator.command()
def revoke(name: Name, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """End an account's token, at once."""
    _desk(socket, "revoke", as_json, name=name)


@curator.command()
def budget(dataset: Dataset, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """Everyone's budgets."""
    _desk(socket, "budget", as_json, dataset=dataset)


@curator.command()
def log(socket: Desk = DESK, as_json: AsJson = False) -> None:
    """The private log: engine failures and late answers. It may depend on records; keep it."""
    _desk(socket, "log", as_json)


@curator.command()
def misses(dataset: Dataset, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """Answers that left later than predicted."""
    _desk(socket, "misses", as_json, dataset=dataset)


@curator.command()
def unlock(dataset: Dataset, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """Let a dataset that late answers locked answer again."""
    _desk(socket, "unlock", as_json, dataset=dataset)


@curator.command()
def reset_latency(dataset: Dataset, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """Let answers leave as early again as before some were late: each late one had doubled its kind's time."""
    _desk(socket, "quicken", as_json, dataset=dataset)


@curator.command()
def corrections(dataset: Dataset, socket: Desk = DESK, as_json: AsJson = False) -> None:
    """How many values were corrected into their declared domain; depends on records."""
    _desk(socket, "corrections", as_json, dataset=dataset)


@curator.command()
def desk(
    port: Annotated[int, typer.Option(min=0, max=65535, help="the port on this machine; 0 takes a free one")] = 8767,
    socket: Desk = DESK,
    as_json: AsJson = False,
) -> None:
    """Show the desk as a page, on this machine alone, until interrupted; its address is the key to it."""
    from dither.serve.kernel.desk_page import AdminPageServer, Page

    try:
        server = AdminPageServer(Page(socket), port)
    except OSError:
        raise InvalidParameter(f"cannot listen on port {port}; is something else there?") from None
    _ready("desk", server.url, as_json)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


@curator.command()
def gap(
    head: Annotated[str, typer.Option(help="the last end that was seen, as SEQUENCE:HASH")],
    epsilon: Annotated[str | None, typer.Option(help="what anyone may have spent since, at most")] = None,
    rho: Annotated[str | None, typer.Option(help="the same, in zCDP")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="count all that was left as spent")] = False,
    socket: Desk = DESK,
    as_json: AsJson = False,
) -> None:
    """Count a lost stretch of the ledger as spent, and open it again."""
    given = {"epsilon": epsilon, "rho": rho, "everything": "yes" if everything else None, "head": head}
    _desk(socket, "gap", as_json, **{name: value for name, value in given.items() if value is not None})
