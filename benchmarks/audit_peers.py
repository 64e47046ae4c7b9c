"""DP-Sniper and StatDP on the members of the catalogue, at the samples that the auditor gets; run by `audit.py peers`.

Neither is on the package index. Their public repositories (eth-sri/dp-sniper, cmla-psu/statdp) are looked for in a
folder that is named on the command line, and are called as their own examples call them:

    python benchmarks/audit.py peers --peers FOLDER [names]     FOLDER/dp-sniper, FOLDER/statdp

DP-Sniper: logistic regression with its published settings (c = 0.01, 10 epochs) and a one-sided bound at 0.95, which
it takes from two at 0.95 each; the samples are divided among training, threshold and check of every pair both ways, and
the final bound of the best. StatDP: event selection on a fifth of the samples, then its hypothesis test at each epsilon
of a ladder on the rest, the largest one refuted at 0.05. It enumerates products of half-lines of every coordinate, so
that it is run on outputs of one number only.
"""

from __future__ import annotations

import bisect
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dither.audit.zoo import Member

LADDER = np.concatenate([np.arange(0.005, 0.3, 0.005), np.arange(0.3, 1.0, 0.02), np.geomspace(1, 16, 60)]).tolist()


def found(tool: str, member: Member, samples: int, folder: Path, seed: int) -> tuple[float, float] | None:
    """A peer's lower bound and CPU seconds; None where it does not run."""
    call = {"dp-sniper": sniper, "statdp": statdp}[tool]
    started = time.process_time()
    value = call(member, samples, folder / tool, seed)
    return None if value is None else (value, time.process_time() - started)


def sniper(member: Member, samples: int, folder: Path, seed: int) -> float | None:
    """DP-Sniper's lower bound on the best pair, either way round."""
    modules = _modules(folder, "attack.dpsniper", "classifiers.classifier_factory",
                       "classifiers.torch_optimizer_factory",
                       "search.ddconfig", "search.ddwitness", "probability.estimators", "utils.torch", "utils.paths",
                       "classifiers.feature_transformer", package="dpsniper")  # fmt: skip
    if modules is None:
        return None
    attack, factories, optimizers, config_of, witness_of, estimators, torch, paths, transformers = modules
    torch.torch_initialize(torch_threads=1)
    paths.set_output_directory(tempfile.mkdtemp())
    pairs = [pair for a, b in member.neighbours for pair in ((a, b), (b, a))]
    draw = member.mechanism(seed)
    part = max(1000, samples // (2 * (2 * len(pairs) + 1)) // 1000 * 1000)
    config = config_of.DDConfig(
        n_train=part // 2, n=part // 2, n_check=part, n_final=part, n_processes=1, confidence=0.9
    )

    class Mechanism:
        def m(self, a: Any, n_samples: int = 1) -> Any:
            return _plain(draw(a, n_samples))

    some = _plain(draw(pairs[0][0], 1000)).reshape(1000, -1)
    flags = [float(value) for value in (-1000.0, -2000.0) if (some == value).any()]
    flags = [-1.0] if not flags and set(np.unique(some)) == {-1.0, 0.0, 1.0} else flags
    width = some.shape[1] * (1 + len(flags))
    optimizer = optimizers.SGDOptimizerFactory(learning_rate=0.3, momentum=0.3, step_size=500)
    factory = factories.LogisticRegressionFactory(
        in_dimensions=width, optimizer_factory=optimizer, regularization_weight=0.001, epochs=10,
        feature_transform=transformers.FlagsFeatureTransformer(flags) if flags else None,
    )  # fmt: skip
    best = None
    for a, b in pairs:
        witness = witness_of.DDWitness(a, b, attack.DPSniper(Mechanism(), factory, config).best_attack(a, b))
        witness.compute_eps_using_estimator(
            estimators.EpsEstimator(estimators.PrEstimator(Mechanism(), config.n_check, config))
        )
        best = witness if best is None or witness.eps > best.eps else best
    if best is None:
        return None
    final = estimators.PrEstimator(Mechanism(), config.n_final, config)
    best.compute_eps_using_estimator(estimators.EpsEstimator(final))
    return max(0.0, float(best.lower_bound))


def statdp(member: Member, samples: int, folder: Path, seed: int) -> float | None:
    """The largest epsilon that StatDP refutes."""
    modules = _modules(folder, "core", "hypotest", package="statdp")
    if modules is None:
        return None
    core, hypotest = modules
    draw = member.mechanism(seed)
    if _plain(draw(member.neighbours[0][0], 2)).ndim > 1:
        return None
    search, detect = samples // 5 // (2 * len(member.neighbours)), samples * 4 // 5 // 2
    best: tuple[float, Any, Any, Any] = (-np.inf, None, None, None)
    for a, b in member.neighbours:
        counts, events = core.run_algorithm(_one_by_one(draw), a, b, {}, None, search)
        for (high, low), (first, second, _, event) in zip(counts, events, strict=True):
            if high >= 0.001 * search:
                best = max(best, (np.log((high + 0.5) / (low + 0.5)), first, second, event), key=lambda each: each[0])
    _, first, second, event = best
    counts, _ = core.run_algorithm(_one_by_one(draw), first, second, {}, event, detect)
    high, low = counts[0]
    rung = bisect.bisect_left(
        LADDER, True, key=lambda at: bool(hypotest.test_statistics(high, low, float(at), detect) >= 0.05)
    )
    return float(LADDER[rung - 1]) if rung else 0.0


def _one_by_one(draw: Callable[..., Any], block: int = 100_000) -> Callable[..., Any]:
    """The mechanism as StatDP calls it, from draws made in blocks."""
    stores: dict[bytes, list[Any]] = {}

    def algorithm(prng: Any, value: Any) -> Any:
        store = stores.setdefault(np.asarray(value).tobytes(), [])
        if not store:
            store.extend(_plain(draw(value, block)))
        return store.pop()

    return algorithm


def _plain(outputs: Any) -> Any:
    """Numbers without infinities and NaN, which the peers cannot read."""
    return np.nan_to_num(np.asarray(outputs, dtype=np.float64), nan=-2000.0, neginf=-1000.0, posinf=1000.0)


def _modules(folder: Path, *names: str, package: str) -> list[Any] | None:
    if not folder.is_dir():
        print(f"{package} is not in {folder}", flush=True)
        return None
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return [importlib.import_module(f"{package}.{name}") for name in names]
    except ImportError as error:
        print(f"{package} cannot be imported: {error}", flush=True)
        return None
