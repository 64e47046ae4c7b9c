"""A pytest plug-in: `assert_private(mechanism, claim)`, and a marker that makes a function's name its own audit.

    def test_mine(assert_private):
        assert_private(my_mechanism, "epsilon=1")

The auditor's own choices are made from a seed (`--audit-seed`, 0 unless said), so that only the mechanism's randomness
differs from run to run; a right mechanism fails with probability at most alpha, 1e-6 unless said, in each assertion.
The result of a mechanism that is itself seeded is the same in every run. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dither.audit.blackbox.report import PrivacyResult
    from dither.loss import Loss

FALSE_ALARM = 1e-6
SAMPLES = 200_000
MARKER = "private(claim, neighbours=None, samples=200000, alpha=1e-6): audit the mechanism that this function returns"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the audit."""
    group = parser.getgroup("dither audit")
    group.addoption("--audit-samples", type=int, default=None, help="runs of each audited mechanism")
    group.addoption("--audit-alpha", type=float, default=None, help="false-alarm rate of each audit (1e-6)")
    group.addoption("--audit-seed", type=int, default=0, help="the seed of the auditor's own choices (0)")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, so that --strict-markers knows it."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> Callable[..., PrivacyResult]:
    """A function that fails the test when the auditor refutes a claim."""
    given = _given(request.config)

    def check(mechanism: Callable[..., Any], claim: Loss | str, **options: Any) -> PrivacyResult:
        __tracebackhide__ = True
        return audited(mechanism, claim, **{**given, **options})

    return check


def _given(config: pytest.Config) -> dict[str, Any]:
    """What the command line says; what it does not say is as it always was."""
    samples, alpha = config.getoption("--audit-samples"), config.getoption("--audit-alpha")
    return {
        "samples": SAMPLES if samples is None else samples,
        "alpha": FALSE_ALARM if alpha is None else alpha,
        "seed": config.getoption("--audit-seed"),
    }


def audited(
    mechanism: Callable[..., Any],
    claim: Loss | str,
    *,
    neighbours: Sequence[tuple[Any, Any]] | None = None,
    samples: int = SAMPLES,
    alpha: float = FALSE_ALARM,
    seed: int | None = 0,
    **options: Any,
) -> PrivacyResult:
    """The audit; a refuted claim fails with the counterexample."""
    __tracebackhide__ = True
    from dither.audit import privacy
    from dither.audit.claim_syntax import parse_claim as parsed

    stated = parsed(claim) if isinstance(claim, str) else claim
    result = privacy(mechanism, stated, neighbours, samples=samples, alpha=alpha, seed=seed, **options)
    if result.refuted:
        pytest.fail(f"{result}\n{result.counterexample}", pytrace=False)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A function with the marker `private` returns a mechanism, which is audited."""
    marker = pyfuncitem.get_closest_marker("private")
    if marker is None:
        return None
    options = dict(marker.kwargs)
    claim = marker.args[0] if marker.args else options.pop("claim", None)
    if claim is None:
        pytest.fail("the marker private needs a claim: @pytest.mark.private('epsilon=1')", pytrace=False)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    mechanism = pyfuncitem.obj(**arguments)
    if not callable(mechanism):
        pytest.fail("a test with the marker private returns the mechanism", pytrace=False)
    audited(mechanism, claim, **{**_given(pyfuncitem.config), **options})
    return True
