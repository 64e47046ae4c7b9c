"""The models and synthetic data of a session: each is called to ask, and its `quote` has the same arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dither.plan.context import Context
from dither.post.statistics.core import Statistic, StatisticOptions, read_population, statistic
from dither.post.statistics.design import Standard
from dither.post.statistics.linear import LinearModel, make_regression
from dither.privacy.protocol import Kernel


class Models:
    """The models that a session fits, each for one charge; see docs/statistics.md."""

    kernel: Kernel
    name: str
    token: str
    context: Context

    @statistic
    def regress(
        self,
        source: str,
        target: str,
        features: Sequence[str],
        *,
        alpha: float = 0.0,
        standardize: Standard | None = None,
        population: bool = False,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[LinearModel]:
        """Fit a linear regression from noisy sums of products; `alpha` is a ridge penalty.

        Categories become indicators of each level but the first. Numbers are standardised by their declared bounds, or
        by private centres and scales (`standardize="private"`, the default for units with many rows). Intervals include
        the noise, and sampling error too with `population=True`.
        """
        rows = read_population(self, source, options)
        return make_regression(rows, target, features, alpha, standardize, population)
