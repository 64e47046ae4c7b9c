"""The models and synthetic data of a session: each is called to ask, and its `quote` has the same arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dither.errors import InvalidParameter
from dither.loss import Rational
from dither.plan.context import Context
from dither.post.statistics.arguments import read_names
from dither.post.statistics.bayes import NaiveBayes, make_bayes
from dither.post.statistics.classification import make_logistic
from dither.post.statistics.clusters import Clusters, make_clusters
from dither.post.statistics.components import PrincipalComponents, make_components
from dither.post.statistics.core import Statistic, statistic
from dither.post.statistics.design import Standard
from dither.post.statistics.linear import LinearModel, make_regression
from dither.post.statistics.logistic import LogisticModel
from dither.post.statistics.source_rows import StatisticOptions, read_rows
from dither.post.statistics.synthesis import SyntheticData, make_synthesis
from dither.privacy.protocol import Kernel
from dither.schema import Scalar


class Models(ABC):
    """The models that a session fits, each for one charge; see docs/statistics.md."""

    kernel: Kernel
    name: str
    token: str

    @property
    @abstractmethod
    def context(self) -> Context:
        """The dataset's public facts."""

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
        rows = read_rows(self, source, options)
        return make_regression(rows, target, read_features(target, features, alpha), alpha, standardize, population)

    @statistic
    def classify(
        self,
        source: str,
        target: str,
        features: Sequence[str],
        *,
        positive: Scalar = None,
        alpha: float = 0.0,
        standardize: Standard | None = None,
        sample: Rational | None = None,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[LogisticModel]:
        """Fit a logistic regression by steps on noisy gradients, all in one charge.

        The target is a boolean, a number with two values, or a category of which `positive` is one class. `alpha` is a
        ridge penalty on weights in standard units. With `sample=0.1`, each unit is read with that probability only, and
        the noise is calibrated to the loss that this amplifies.
        """
        rows = read_rows(self, source, options)
        names = read_features(target, features, alpha)
        return make_logistic(rows, target, names, positive, alpha, standardize, sample)

    @statistic
    def synthesize(
        self,
        source: str,
        columns: Sequence[str],
        *,
        bins: Mapping[str, int | Sequence[float]] | None = None,
        seed: int = 0,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[SyntheticData]:
        """Make synthetic rows from noisy tables of all pairs of columns, with a report on each pair.

        `bins` has, for numbers, a number of bins of equal width or a list of edges; a number with more than 16 declared
        values is cut into 8 bins otherwise. A joint distribution of all columns is fitted to the noisy pairs; a tree of
        the pairs with most mutual information if there are too many combinations.
        """
        return make_synthesis(read_rows(self, source, options), columns, bins, seed)

    @statistic
    def components(
        self,
        source: str,
        columns: Sequence[str],
        *,
        count: int | None = None,
        correlation: bool = True,
        standardize: Standard | None = None,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[PrincipalComponents]:
        """Find principal components from noisy sums of products, of columns in units of their standard deviations.

        With `correlation=False` they are in raw units. `standardize` is that of `regress`.
        """
        rows = read_rows(self, source, options)
        return make_components(rows, read_names("columns", columns), count, correlation, standardize)

    @statistic
    def cluster(
        self,
        source: str,
        columns: Sequence[str],
        count: int,
        *,
        bins: int | None = None,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[Clusters]:
        """Find clusters of numbers by k-means on a noisy grid of `bins` for each column."""
        return make_clusters(read_rows(self, source, options), read_names("columns", columns), count, bins)

    @statistic
    def naive_bayes(
        self,
        source: str,
        target: str,
        features: Sequence[str],
        *,
        bins: Mapping[str, int | Sequence[float]] | None = None,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[NaiveBayes]:
        """Fit a naive Bayes classifier from noisy tables of the target and each column; `bins` as in `synthesize`."""
        return make_bayes(read_rows(self, source, options), target, read_features(target, features), bins)


def read_features(target: str, features: Any, alpha: Any = 0.0) -> tuple[str, ...]:
    """Return the columns of a model; refuse its own target among them, and a penalty that is no number from 0 on."""
    names = read_names("features", features)
    if target in names:
        raise InvalidParameter(f"the target {target!r:.60} cannot be one of the features")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < float("inf"):
        raise InvalidParameter(f"alpha must be a number that is at least 0, got {alpha!r:.40}")
    return names
