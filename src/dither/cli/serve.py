"""`dither kernel`, `gateway`, `serve` and `curator`; options come from flags, the environment or a YAML file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dither.cli.options import AsJson
from dither.errors import DitherError, InvalidParameter
from dither.schema import load
from dither.serve.operations.permissions import check_secret_file
from dither.serve.operations.state_lock import lock_folder
from dither.serve.operations.supervisor import ManagedProcess, Supervisor, gateway_environment, primary_group
from dither.serve.transport.socket_client import MutualTls

app = typer.Typer(add_completion=False)
curator = typer.Typer(add_completion=False, no_args_is_help=True, help="Administer a kernel through its admin socket.")
app.add_typer(curator, name="curator")


def _apply_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Use a file's settings as defaults; flags and the environment override them."""
    if path is None:
        return None
    try:
        given = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError):
        raise InvalidParameter(f"cannot read {path} as YAML") from None
    known = {parameter.name for parameter in context.command.params} - {"config", "as_json"}
    if not isinstance(given, dict) or not set(given) <= known:
        raise InvalidParameter(f"{path} must be a mapping; its keys may be: {', '.join(sorted(filter(None, known)))}")
    context.default_map = {**(context.default_map or {}), **given}
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        envvar="DITHER_CONFIG", callback=_apply_config_file, is_eager=True, help="a YAML file with any of these options"
    ),
]
Descriptions = Annotated[list[Path], typer.Argument(help="dataset descriptions", show_default=False)]
State = Annotated[Path, typer.Option(envvar="DITHER_STATE", help="folder of the ledger, the sockets and the logs")]
LedgerPlace = Annotated[
    str, typer.Option(envvar="DITHER_LEDGER", help="ledger file or, in the environment only, a database address")
]
AnotherLedger = Annotated[
    bool,
    typer.Option(
        "--another-ledger",
        envvar="DITHER_ANOTHER_LEDGER",
        help="allow another ledger than the one that a description has",
    ),
]
Anchor = Annotated[
    Path | None,
    typer.Option(
        envvar="DITHER_ANCHOR",
        help="file outside the state folder that follows the ledger's head; a kernel behind it does not start",
    ),
]
Slots = Annotated[
    int, typer.Option(envvar="DITHER_SLOTS", min=1, max=64, help="answers computed at once for one dataset")
]
Waiting = Annotated[int, typer.Option(envvar="DITHER_WAITING", min=1, help="queries that may wait for one dataset")]
AccountQueries = Annotated[
    int, typer.Option(envvar="DITHER_ACCOUNT_QUESTIONS", min=1, help="queries of one account in progress or waiting")
]
Floor = Annotated[int, typer.Option(envvar="DITHER_FLOOR", min=1, help="minimum milliseconds of every answer")]
Misses = Annotated[
    int, typer.Option(envvar="DITHER_MISSES", min=1, help="late answers after which a dataset is locked")
]
Host = Annotated[str, typer.Option(envvar="DITHER_HOST", help="address to listen on")]
Port = Annotated[
    int, typer.Option(envvar="DITHER_PORT", min=0, max=65535, help="port to listen on; 0 takes a free one")
]
Certificate = Annotated[Path | None, typer.Option(envvar="DITHER_CERTIFICATE", help="file of this side's certificate")]
Key = Annotated[Path | None, typer.Option(envvar="DITHER_KEY", help="file of the certificate's private key")]
Authority = Annotated[
    Path | None,
    typer.Option(envvar="DITHER_AUTHORITY", help="file of the authority that signs the other side's certificate"),
]
Rate = Annotated[float, typer.Option(envvar="DITHER_RATE", min=0.01, help="requests per second of one account")]
Burst = Annotated[int, typer.Option(envvar="DITHER_BURST", min=1, help="largest burst of requests of one account")]
Tick = Annotated[
    int,
    typer.Option(envvar="DITHER_TICK", min=0, max=1000, help="send replies at multiples of this many milliseconds"),
]
ReportsFolder = Annotated[
    Path | None, typer.Option(envvar="DITHER_REPORTS", help="folder of audit reports to publish to every account")
]
Oidc = Annotated[
    Path | None, typer.Option(envvar="DITHER_OIDC", help="YAML file that maps OpenID Connect ID tokens to accounts")
]
Proxy = Annotated[
    str | None,
    typer.Option(envvar="DITHER_PROXY", help="address of a reverse proxy, which names the client in X-Forwarded-For"),
]
AdminSocket = Annotated[Path, typer.Option("--socket", envvar="DITHER_ADMIN_SOCKET", help="the kernel's admin socket")]
Name = Annotated[str, typer.Argument(help="name of the account", show_default=False)]
Dataset = Annotated[str, typer.Argument(help="name of the dataset", show_default=False)]

STATE = Path("dither-state")
ADMIN_SOCKET = STATE / "private" / "admin.sock"


def _print_address(server: str, address: str, as_json: bool) -> None:
    """Print the address of a server that starts."""
    print(json.dumps({server: address}) if as_json else f"{server}: {address}", flush=True)


def _check_installed(command: str) -> None:
    """Check that the server's libraries are installed, before a supervisor would restart the gateway forever."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise DitherError(f"'dither {command}' needs the extra 'server'; run: pip install 'dither[server]'")


def _check_ledger_argument(ledger: str) -> str:
    """Return the ledger's location; raise InvalidParameter for a database address among the public arguments."""
    if "://" in ledger and any(ledger in word for word in sys.argv):
        raise InvalidParameter(
            "give a database address in the environment (DITHER_LEDGER): other users can read command-line arguments"
        )
    return ledger


@app.command()
def kernel(
    descriptions: Descriptions,
    state: State = STATE,
    ledger: LedgerPlace = "",
    another_ledger: AnotherLedger = False,
    anchor: Anchor = None,
    socket: Annotated[
        Path | None,
        typer.Option(envvar="DITHER_SOCKET", help="socket for gateways; by default in the state folder"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(envvar="DITHER_GROUP", help="group that may open that socket, such as the gateway user's"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            envvar="DITHER_LISTEN",
            help="HOST:PORT for gateways on other machines; needs --certificate, --key and --authority",
        ),
    ] = None,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    slots: Slots = 2,
    waiting: Waiting = 64,
    account_questions: AccountQueries = 8,
    floor: Floor = 500,
    misses: Misses = 3,
    oidc: Oidc = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Run the kernel: it holds the data and the budgets, and answers typed plans from gateways."""
    from dither.privacy.pacing import Schedule
    from dither.serve.kernel.fair_queue import QueueLimits
    from dither.serve.kernel.process import KernelSettings, TlsSettings, run_kernel

    tls = None
    if listen is not None:
        host, port = _parse_address(listen)
        tls = TlsSettings(host, port, *_require_tls_files(certificate, key, authority))
    settings = KernelSettings(
        tuple(descriptions), state, _check_ledger_argument(ledger), socket, None, tls, group,
        Schedule(floor=floor, max_misses=misses), QueueLimits(slots, waiting, account_questions), slots, oidc,
        another_ledger, anchor,
    )  # fmt: skip
    _print_address("kernel", str(settings.socket_path), as_json)
    run_kernel(settings)


@app.command()
def gateway(
    kernel: Annotated[str, typer.Option(envvar="DITHER_KERNEL", help="the kernel's socket, or tls://HOST:PORT")] = str(
        STATE / "kernel.sock"
    ),
    state: Annotated[
        Path,
        typer.Option(envvar="DITHER_GATEWAY_STATE", help="folder in which the gateway keeps the latest ledger head"),
    ] = Path("dither-gateway"),
    host: Host = "127.0.0.1",
    port: Port = 8765,
    certificate: Certificate = None,
    key: Key = None,
    authority: Authority = None,
    https_certificate: Annotated[
        Path | None, typer.Option(envvar="DITHER_HTTPS_CERTIFICATE", help="file of the HTTPS certificate")
    ] = None,
    https_key: Annotated[
        Path | None, typer.Option(envvar="DITHER_HTTPS_KEY", help="file of the HTTPS certificate's private key")
    ] = None,
    rate: Rate = 20,
    burst: Burst = 60,
    tick: Tick = 100,
    reports: ReportsFolder = None,
    proxy: Proxy = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Run the gateway: it serves HTTP requests and the web page, without access to the data."""
    _check_installed("gateway")
    from dither.serve.gateway.endpoints import AppSettings
    from dither.serve.gateway.process import GatewaySettings, run_gateway
    from dither.serve.gateway.rate_limits import Rate as Limit

    address: str | MutualTls = kernel
    if kernel.startswith("tls://"):
        kernel_host, kernel_port = _parse_address(kernel.removeprefix("tls://"))
        address = MutualTls(kernel_host, kernel_port, *_require_tls_files(certificate, key, authority))
    if https_key is not None:
        check_secret_file(https_key)
    limits = AppSettings(account_rate=Limit(rate, burst), tick_ms=tick, reports=reports)
    settings = GatewaySettings(address, state, host, port, https_certificate, https_key, limits, proxy)
    run_gateway(settings, lambda url: _print_address("gateway", url, as_json))


@app.command()
def serve(
    descriptions: Descriptions,
    state: State = STATE,
    ledger: LedgerPlace = "",
    another_ledger: AnotherLedger = False,
    anchor: Anchor = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    slots: Slots = 2,
    waiting: Waiting = 64,
    account_questions: AccountQueries = 8,
    floor: Floor = 500,
    misses: Misses = 3,
    rate: Rate = 20,
    burst: Burst = 60,
    tick: Tick = 100,
    reports: ReportsFolder = None,
    proxy: Proxy = None,
    oidc: Oidc = None,
    gateway_user: Annotated[
        str | None, typer.Option(envvar="DITHER_GATEWAY_USER", help="run the gateway as this user; needs root")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Start a kernel and a gateway on this machine, each in its own process, and keep them running."""
    _check_installed("serve")
    ledger = _check_ledger_argument(ledger)  # before a folder is made: a refused command leaves nothing behind
    for path in descriptions:
        load(path)  # a kernel that cannot start would be started again for ever
    state = state.absolute()
    gateway_state = state / "gateway"
    gateway_state.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(state, "dither serve")
    if gateway_user is not None:
        import shutil

        shutil.chown(gateway_state, gateway_user)
    if ledger:
        # The kernel process reads the location from its environment, because arguments are public.
        os.environ["DITHER_LEDGER"] = ledger
    numbers = {"slots": slots, "waiting": waiting, "account-questions": account_questions}
    numbers |= {"floor": floor, "misses": misses}
    kernel_command = [*_program("kernel"), *(str(path.absolute()) for path in descriptions), "--state", str(state)]
    kernel_command += _flags(numbers)
    kernel_command += ["--oidc", str(oidc.absolute())] if oidc else []
    kernel_command += ["--another-ledger"] if another_ledger else []
    kernel_command += ["--anchor", str(anchor.absolute())] if anchor else []
    kernel_command += ["--group", str(primary_group(gateway_user))] if gateway_user else []
    gateway_command = _program("gateway")
    gateway_command += _flags({"kernel": state / "kernel.sock", "state": gateway_state, "host": host, "port": port})
    gateway_command += _flags({"rate": rate, "burst": burst, "tick": tick})
    gateway_command += ["--reports", str(reports.absolute())] if reports else []
    gateway_command += ["--proxy", proxy] if proxy else []
    for command in (kernel_command, gateway_command):
        command += ["--json"] if as_json else []
    children = [
        ManagedProcess("kernel", kernel_command, _kernel_environment(), state),
        ManagedProcess("gateway", gateway_command, gateway_environment(), gateway_state, gateway_user),
    ]
    hint = f"dither curator account NAME --socket {state / 'private' / 'admin.sock'}"
    print(json.dumps({"state": str(state)}) if as_json else f"accounts: {hint}", flush=True)
    with lock:
        Supervisor(children).run()


def _program(command: str) -> list[str]:
    """Return the words that start a command of Dither in a new process."""
    return [sys.executable, "-m", "dither", command]


def _flags(values: Mapping[str, object]) -> list[str]:
    """Return command-line words that set options."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def _kernel_environment() -> dict[str, str]:
    """Return this process's environment without the variables that apply to `serve` alone."""
    return {name: value for name, value in os.environ.items() if name not in ("DITHER_CONFIG", "DITHER_SOCKET")}


def _parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise InvalidParameter("an address must have the form HOST:PORT")
    return host, int(port)


def _require_tls_files(certificate: Path | None, key: Path | None, authority: Path | None) -> tuple[Path, Path, Path]:
    """Return the three files of mutual TLS; raise InvalidParameter if one is missing."""
    if certificate is None or key is None or authority is None:
        raise InvalidParameter("TLS between the servers needs --certificate, --key and --authority")
    return certificate, check_secret_file(key), authority


# --- curator commands ------------------------------------------------------------------------------------------------


def _call_and_print(socket: Path, call: str, as_json: bool, /, **given: str) -> None:
    """Make an admin call and print its result."""
    from dither.serve.kernel.admin import call_admin

    data = call_admin(socket, call, **given)
    typer.echo(json.dumps(data, indent=2) if as_json else _format_data(data))


def _format_data(data: Any, indent: str = "") -> str:
    """Format plain data as indented lines."""
    if isinstance(data, dict):
        return "\n".join(f"{indent}{name}: {_format_nested(value, indent)}" for name, value in data.items())
    if isinstance(data, list):
        return "\n".join(_format_data(each, indent) + "\n" for each in data).rstrip() or f"{indent}none"
    return f"{indent}{data}"


def _format_nested(value: Any, indent: str) -> str:
    return "\n" + _format_data(value, indent + "  ") if isinstance(value, dict | list) else str(value)


@curator.command()
def status(socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Print the datasets, their late answers, and the head of the ledger."""
    _call_and_print(socket, "status", as_json)


@curator.command()
def register(
    description: Annotated[Path, typer.Argument(help="a dataset description on the kernel's machine")],
    socket: AdminSocket = ADMIN_SOCKET,
    as_json: AsJson = False,
) -> None:
    """Register a dataset, or a new version of one, on a running kernel."""
    _call_and_print(socket, "register", as_json, path=str(description.absolute()))


@curator.command()
def account(
    name: Name,
    role: Annotated[str, typer.Option(help="analyst, auditor or curator")] = "analyst",
    days: Annotated[int, typer.Option(min=1, max=3650, help="days until the token expires")] = 90,
    sso: Annotated[bool, typer.Option("--sso", help="issue no token; the account signs in by ID tokens")] = False,
    socket: AdminSocket = ADMIN_SOCKET,
    as_json: AsJson = False,
) -> None:
    """Create an account, or a new token for one; the token is printed once, and only its hash is stored."""
    given = {"sso": "yes"} if sso else {"days": str(days)}
    _call_and_print(socket, "account", as_json, name=name, role=role, **given)


@curator.command()
def accounts(socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """List every account with its role and its state."""
    _call_and_print(socket, "accounts", as_json)


@curator.command()
def revoke(name: Name, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Revoke an account's token at once."""
    _call_and_print(socket, "revoke", as_json, name=name)


@curator.command()
def budget(dataset: Dataset, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Print the budgets of all accounts."""
    _call_and_print(socket, "budget", as_json, dataset=dataset)


@curator.command()
def log(socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Print the private log of engine failures and late answers. It may depend on records: keep it secret."""
    _call_and_print(socket, "log", as_json)


@curator.command()
def misses(dataset: Dataset, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """List the answers that left later than predicted."""
    _call_and_print(socket, "misses", as_json, dataset=dataset)


@curator.command()
def unlock(dataset: Dataset, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Unlock a dataset that was locked because of late answers."""
    _call_and_print(socket, "unlock", as_json, dataset=dataset)


@curator.command()
def reset_latency(dataset: Dataset, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Reset the predicted durations of a dataset's answers; each late answer doubled that of its time class."""
    _call_and_print(socket, "reset_latency", as_json, dataset=dataset)


@curator.command()
def corrections(dataset: Dataset, socket: AdminSocket = ADMIN_SOCKET, as_json: AsJson = False) -> None:
    """Print how many values were corrected into their declared domain; depends on records."""
    _call_and_print(socket, "corrections", as_json, dataset=dataset)


@curator.command()
def desk(
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on this machine; 0 takes a free one")] = 8767,
    socket: AdminSocket = ADMIN_SOCKET,
    as_json: AsJson = False,
) -> None:
    """Serve the curator's desk, a web page on this machine, until interrupted; the printed address works once."""
    from dither.serve.kernel.desk_page import DeskPage, DeskServer

    try:
        server = DeskServer(DeskPage(socket), port)
    except OSError:
        raise InvalidParameter(f"cannot listen on port {port}; choose another --port") from None
    _print_address("desk", server.url, as_json)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


@curator.command()
def gap(
    head: Annotated[str, typer.Option(help="the last head seen, as SEQUENCE:HASH")],
    epsilon: Annotated[str | None, typer.Option(help="the most epsilon that any account may have spent since")] = None,
    rho: Annotated[str | None, typer.Option(help="the most rho (zCDP) that any account may have spent since")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="count the whole remaining budget as spent")] = False,
    socket: AdminSocket = ADMIN_SOCKET,
    as_json: AsJson = False,
) -> None:
    """Count a lost segment of the ledger as spent, and open the ledger again."""
    given = {"epsilon": epsilon, "rho": rho, "everything": "yes" if everything else None, "head": head}
    _call_and_print(socket, "gap", as_json, **{name: value for name, value in given.items() if value is not None})
