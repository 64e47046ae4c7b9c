"""The statistics of a session: each is called to ask, and its `quote` has the same arguments and is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

from dither.plan.context import Context
from dither.post.statistics.contingency import ContingencyTable, make_table, read_table_request
from dither.post.statistics.core import Statistic, StatisticOptions, read_rows, statistic
from dither.post.statistics.models import Models
from dither.privacy.protocol import Kernel


class Statistics(Models):
    """The statistics that a session offers, each for one charge; see docs/statistics.md."""

    kernel: Kernel
    name: str
    token: str
    context: Context

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
