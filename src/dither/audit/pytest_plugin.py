"""A pytest plug-in: the fixture `assert_private(mechanism, claim)`, and a marker `private` for audited functions.

    def test_mine(assert_private):
        assert_private(my_mechanism, "epsilon=1", domain=Numbers(0, 100))

The auditor draws its own random choices from a seed (`--audit-seed`, 0 by default), so that only the mechanism's
randomness differs from run to run; a mechanism that is seeded itself gives the same result in every run. Each assertion
falsely rejects a true claim with probability at most alpha, 1e-6 by default. A test that could not have refuted a large
violation warns; with `detect="epsilon=1.5"` it fails unless it could have refuted that. Heavy modules are imported on
first use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dither.audit.blackbox.report import PrivacyResult
    from dither.loss import Loss

ALPHA = 1e-6
SAMPLES = 200_000
MARKER = (
    "private(claim, neighbours=None, domain=None, samples=200000, alpha=1e-6, detect=None): "
    "audit the mechanism that this function returns"
)


class AuditPowerWarning(UserWarning):
    """A test passed that could not have refuted a large violation."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options of the audit."""
    group = parser.getgroup("dither audit")
    group.addoption("--audit-samples", type=int, default=None, help="runs of each audited mechanism (200000)")
    group.addoption("--audit-alpha", type=float, default=None, help="false-alarm probability of each audit (1e-6)")
    group.addoption("--audit-seed", type=int, default=0, help="seed of the auditor's random choices (0)")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `private`, for --strict-markers."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> Callable[..., PrivacyResult]:
    """Return a function that fails the test if the auditor refutes a claim."""
    defaults = _command_line_options(request.config)

    def check(mechanism: Callable[..., Any], claim: Loss | str, **options: Any) -> PrivacyResult:
        __tracebackhide__ = True
        return audit_mechanism(mechanism, claim, **{**defaults, **options})

    return check


def _command_line_options(config: pytest.Config) -> dict[str, Any]:
    """Return the audit's options from the command line, with defaults."""
    samples, alpha = config.getoption("--audit-samples"), config.getoption("--audit-alpha")
    return {
        "samples": SAMPLES if samples is None else samples,
        "alpha": ALPHA if alpha is None else alpha,
        "seed": config.getoption("--audit-seed"),
    }


def audit_mechanism(
    mechanism: Callable[..., Any],
    claim: Loss | str,
    *,
    neighbours: Sequence[tuple[Any, Any]] | None = None,
    samples: int = SAMPLES,
    alpha: float = ALPHA,
    seed: int | None = 0,
    detect: Loss | str | None = None,
    **options: Any,
) -> PrivacyResult:
    """Audit a mechanism; fail the test with the counterexample if the claim is refuted.

    `detect` is a loss that the test must be able to refute, else it fails; by default, a weak test only warns.
    """
    __tracebackhide__ = True
    from dither.audit import privacy
    from dither.audit.claim_syntax import as_claim

    wanted = None if detect is None else as_claim(detect)
    result = privacy(mechanism, claim, neighbours, samples=samples, alpha=alpha, seed=seed, **options)
    if result.refuted:
        pytest.fail(str(result), pytrace=False)
    if reason := result.power.shortfall(wanted):
        _report_weak_test(reason, must_detect=wanted is not None)
    return result


def _report_weak_test(reason: str, must_detect: bool) -> None:
    """Fail the test if it stated what it must detect, else warn."""
    __tracebackhide__ = True
    if must_detect:
        pytest.fail(f"the claim was not refuted, but this test is too weak: {reason}", pytrace=False)
    warnings.warn(
        f"this test passed, but it is weak: {reason}. Raise samples=, or state a loss that it must be able to refute, "
        "such as detect='epsilon=3'",
        AuditPowerWarning,
        stacklevel=4,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Audit the mechanism that a test with the marker `private` returns."""
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
        pytest.fail("a test with the marker private must return the mechanism, a callable", pytrace=False)
    audit_mechanism(mechanism, claim, **{**_command_line_options(pyfuncitem.config), **options})
    return True
