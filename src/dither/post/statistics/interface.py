"""The statistics of a session: each is called to ask, and its `quote` has the same arguments and is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from dither.post.estimate.answer import Answer
from dither.post.statistics.combination import combine_answers
from dither.post.statistics.comparison import Comparison, make_comparison
from dither.post.statistics.contingency import ContingencyTable, make_table, read_table_request
from dither.post.statistics.contributions import make_contributions
from dither.post.statistics.core import Statistic, statistic
from dither.post.statistics.description import make_description
from dither.post.statistics.description_figures import Description
from dither.post.statistics.independence import Independence, make_independence
from dither.post.statistics.models import Models
from dither.post.statistics.quantiles import (
    DEFAULT_LEVELS,
    Distribution,
    Histogram,
    QuantileTable,
    make_distribution,
    make_histogram,
    make_quantiles,
)
from dither.post.statistics.result import Result
from dither.post.statistics.selection import Alerts, Counted, TopKeys, make_top, make_watch
from dither.post.statistics.source_rows import StatisticOptions, plan_query, read_rows
from dither.post.statistics.summary import make_proportion, make_ratio
from dither.privacy.protocol import Kernel


class Statistics(Models):
    """The statistics that a session offers, each for one charge; see docs/statistics.md."""

    kernel: Kernel
    name: str
    token: str

    @statistic
    def table(
        self,
        source: str,
        by: str | Sequence[str],
        *,
        margins: Sequence[Sequence[str]] | Literal["all"] | None = None,
        value: str = "COUNT(*)",
        consistent: bool = False,
        nonnegative: bool = False,
        whole: bool = False,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[ContingencyTable]:
        """Count rows, or add up a value, for every combination of declared keys; several margins share one charge.

        `margins` lists the keys of each margin, or is "all". `consistent` makes them agree by least squares,
        `nonnegative` and `whole` make the fitted cells so as well; `raw` keeps what was measured.
        """
        rows = read_rows(self, source, options)
        wanted = read_table_request(by, margins, value, consistent=consistent, nonnegative=nonnegative, whole=whole)
        return make_table(rows, wanted)

    @statistic
    def histogram(
        self,
        source: str,
        column: str,
        *,
        bins: int | Sequence[Any] | Literal["private"] = 20,
        most: int = 20,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[Histogram]:
        """Count the rows in bins of a number: equal bins, given edges, or, with bins="private", edges from the data.

        Private edges are about `most` noisy quantiles, so that bins are narrow where there are many rows.
        """
        return make_histogram(read_rows(self, source, options), column, bins, most)

    @statistic
    def quantiles(
        self,
        source: str,
        column: str,
        levels: Any = DEFAULT_LEVELS,
        *,
        population: bool = False,
        intervals: bool = True,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[QuantileTable]:
        """Estimate quantiles of a number by private selection; most of the loss goes to the points.

        With `population`, the intervals include sampling error as well as noise. With `intervals=False` there are
        none, and the whole loss goes to the points.
        """
        return make_quantiles(read_rows(self, source, options), column, levels, population, intervals)

    @statistic
    def contributions(
        self, table: str, levels: Any = (0.99,), *, where: str = "", **options: Unpack[StatisticOptions]
    ) -> Statistic[QuantileTable]:
        """Estimate how many rows of a table people have: quantiles over people, such as the k that 99% stay under.

        An action-level guarantee says for such a k what it means for a person. `where` counts some rows only.
        """
        return make_contributions(self, table, levels, where, options)

    @statistic
    def distribution(
        self, source: str, column: str, *, population: bool = False, **options: Unpack[StatisticOptions]
    ) -> Statistic[Distribution]:
        """Estimate the whole distribution function of a number, with a band that contains all of it at once."""
        return make_distribution(read_rows(self, source, options), column, population)

    @statistic
    def compare(
        self,
        source: str,
        value: str,
        by: str,
        *,
        trend: bool | Sequence[Any] | None = None,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[Comparison]:
        """Compare the means of a number, or the shares of a boolean, between groups, with a test that allows for noise.

        With `trend`, the test is of a slope over the groups' numbers, or over the scores given.
        """
        return make_comparison(read_rows(self, source, options), value, by, trend)

    @statistic
    def independence(
        self, source: str, one: str, two: str, **options: Unpack[StatisticOptions]
    ) -> Statistic[Independence]:
        """Test whether two columns are independent, by a chi-squared test that allows for noise."""
        return make_independence(read_rows(self, source, options), one, two)

    @statistic
    def describe(
        self, source: str, columns: Sequence[str] | None = None, **options: Unpack[StatisticOptions]
    ) -> Statistic[Description]:
        """Describe a table for one loss: size, means, standard deviations and quantiles, and counts of categories."""
        return make_description(read_rows(self, source, options), columns)

    @statistic
    def proportion(
        self,
        source: str,
        condition: str,
        *,
        by: str | Sequence[str] = (),
        population: bool = False,
        **options: Unpack[StatisticOptions],
    ) -> Statistic[Result]:
        """Estimate the share of rows that meet a condition; with `population`, intervals include sampling error."""
        return make_proportion(read_rows(self, source, options), condition, by, population)

    @statistic
    def ratio(
        self, source: str, over: str, under: str, *, by: str | Sequence[str] = (), **options: Unpack[StatisticOptions]
    ) -> Statistic[Result]:
        """Estimate the ratio of two sums, such as spending to visits."""
        return make_ratio(read_rows(self, source, options), over, under, by)

    @statistic
    def top(
        self,
        source: str,
        by: str | Sequence[str],
        k: int = 1,
        *,
        count: Counted = "units",
        **options: Unpack[StatisticOptions],
    ) -> Statistic[TopKeys]:
        """Select the k keys that most units, or most rows, have, by noisy maxima; only the keys are released."""
        return make_top(read_rows(self, source, options), by, k, count)

    @statistic
    def watch(
        self, query: str, *, above: Any, alerts: int = 1, values: bool = True, **options: Unpack[StatisticOptions]
    ) -> Statistic[Alerts]:
        """Find the first groups of a query, in the order of their keys, whose value reaches a threshold.

        The sparse vector mechanism pays for at most `alerts` of them, however many groups stay below. With
        `values=False` only their keys are released, and comparisons have less noise.
        """
        rows, plan = plan_query(self, query, options)
        return make_watch(rows, query, plan, above, alerts, values)

    def combine(self, *answers: Answer) -> list[Answer]:
        """Improve answers about the same rows by each other, at no cost: least squares over all that was released.

        It takes answers of `sql` and `batch` and tables of `table`; counts and sums of the same rows are combined.
        """
        return combine_answers(answers)
