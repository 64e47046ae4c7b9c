"""A statistic of several steps in one charge: values are chosen privately, and later steps use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dither.loss import Loss
from dither.plan.context import Context
from dither.plan.measures.core import GroupKey, Measure
from dither.plan.traversal import fill_limits, fill_values
from dither.post.estimate.explain import Expected
from dither.post.estimate.losses import other_budget_notes
from dither.post.estimate.quote import Quote, size_notes
from dither.post.estimate.rehearsal import REHEARSALS, made_up_release
from dither.post.noise import Floats, ScaledNoise, noise_of
from dither.post.query.query_plan import LARGEST_BOUNDS
from dither.post.query.request import noise_kind
from dither.post.statistics.core import Measurements, R, Statistic, refused_if_it_fails
from dither.post.statistics.source_rows import Settings
from dither.privacy.mechanisms import calibrate
from dither.privacy.protocol import BoundSearch, Calibrate, Measurement, Release, ReleasedMeasurement, Request


@dataclass(frozen=True)
class Step:
    """A measure that a statistic releases with additive noise, for a share of its loss."""

    measure: Measure
    share: Fraction


@dataclass(frozen=True)
class Released:
    """The release of a statistic's steps, and the values that were chosen, by tag; `releases` has the charge."""

    settings: Settings
    parts: tuple[ReleasedMeasurement, ...]
    chosen: Mapping[str, int]
    releases: tuple[Release, ...] = ()

    def values(self, part: int = 0) -> Floats:
        """Return the noisy values of a part in their own unit, flat."""
        own = self.parts[part]
        steps = np.resize(np.array(own.steps, float), len(own.values))
        return np.asarray(np.array(own.values, float) * steps)

    def noise(self, part: int = 0) -> ScaledNoise:
        """Return the distribution of the noise in each cell of a part; its steps are all equal."""
        return noise_of(self.parts[part].mechanism, self.parts[part].steps[0])

    @property
    def measurements(self) -> Measurements:
        """The charge, for the fields of a result."""
        return Measurements(self.settings, (), self.releases)


@dataclass(frozen=True)
class SteppedStatistic(Statistic[R]):
    """A statistic whose searches choose values for its steps; `finish` builds the result from what is released."""

    searches: tuple[BoundSearch, ...] = ()
    steps: tuple[Step, ...] = ()
    finish: Callable[[Released], R] | None = None

    def ask(self) -> R:
        """Charge the loss once, and build the result from what is released."""
        request, settings = self.request(), self.settings
        self.rehearse_steps()
        release = settings.asker.kernel.answer(request, settings.asker.token)
        chosen = dict(zip(self.tags(), release.chosen_bounds or (), strict=True))
        return self._finish(Released(settings, release.parts, chosen, (release,)))

    def _finish(self, released: Released) -> R:
        if self.finish is None:
            raise TypeError("a stepped statistic needs a function that finishes it")
        return self.finish(released)

    def tags(self) -> list[str]:
        """Return the tags of the chosen values, in the order of the release."""
        return [tag for search in self.searches for tag in search.tags]

    def rehearse_steps(self) -> None:
        """Build the result from several made-up releases, at both ends of what may be chosen; refuse if that fails."""
        context = self.settings.context
        with refused_if_it_fails():
            for end, numbers in REHEARSALS:
                chosen = {tag: search.grid[end] for search in self.searches for tag in search.tags}
                measures = [fill_values(step.measure, chosen) for step in self.steps]
                parts = tuple(made_up_release(context, measure, numbers) for measure in measures)
                self._finish(Released(self.settings, parts, chosen))

    def quote(self) -> Quote:
        """Compute the cost from public facts; read nothing and spend nothing."""
        settings = self.settings
        quoted = settings.asker.kernel.quote(self.request(), settings.asker.token)
        expected: Sequence[Expected] = () if self.expect is None else self.expect([self.step_measurements()])
        own = [part.loss for part in quoted.losses if part.unit == settings.unit]
        asked = settings.spend.loss
        loss = own[0] if own and type(own[0]) is type(asked) else asked
        return Quote(
            loss=loss,
            losses=quoted.losses,
            expected=tuple(expected),
            bounds={},
            affordable=quoted.affordable,
            free=quoted.free,
            time_class=quoted.time_class,
            milliseconds=quoted.milliseconds,
            notes=(*self.notes, *size_notes(expected), *other_budget_notes(quoted.losses, settings.unit, loss)),
        )

    def request(self) -> Request:
        """Build the request of all steps."""
        return self.settings.request(self.step_measurements(), self.searches)

    def step_measurements(self) -> tuple[Measurement, ...]:
        """Build the measurements of the steps, each with the additive noise of the least variance."""
        settings = self.settings
        return tuple(
            Measurement(step.measure, additive(settings, step.measure, settings.spend.share(step.share)))
            for step in self.steps
        )


def additive(settings: Settings, measure: Measure, loss: Loss) -> Calibrate:
    """Return the additive noise of the least variance that a loss allows."""
    largest = fill_limits(measure, LARGEST_BOUNDS)
    return Calibrate(noise_kind(settings.context, largest, settings.unit, loss), loss)


def expected_noise(context: Context, unit: str, measurement: Measurement) -> ScaledNoise:
    """Return the noise that a measurement will have in each cell, from public facts."""
    sensitivity = measurement.measure.sensitivity(context, unit)
    wanted = measurement.mechanism
    mechanism = calibrate(wanted.kind, wanted.loss, sensitivity) if isinstance(wanted, Calibrate) else wanted
    return noise_of(mechanism, measurement.measure.steps(context)[0])


def with_shares(searches: Sequence[BoundSearch], settings: Settings, share: Fraction) -> tuple[BoundSearch, ...]:
    """Give each search the same share of the loss."""
    loss = settings.spend.share(share)
    return tuple(
        replace(search, mechanism=replace(search.mechanism, loss=loss))
        if isinstance(search.mechanism, Calibrate)
        else search
        for search in searches
    )


def listed_key(name: str, places: Sequence[int], value: object) -> GroupKey:
    """Return a key with the listed places, in their order."""
    return GroupKey(name, value, tuple(map(Fraction, places)))  # type: ignore[arg-type]
