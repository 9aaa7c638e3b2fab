"""Bayes by Hypernet, alone and as a mixture: the settings, and the posteriors they describe."""

from dataclasses import dataclass, replace
from typing import Any

import bbh
from bbh import generators, methods
from bbh.samples import Shapes, size
from bbh_studies.settings.method import Model, WithDivergence, count
from bbh_studies.settings.words import ConfigError, choose

_GENERATORS = {
    "layerwise": generators.LayerWise,
    "sliced": generators.Sliced,
    "single": generators.Single,
}


@dataclass(frozen=True)
class GeneratedWeights(WithDivergence):
    """Weights that hypernetworks generate from noise z.

    Attributes:
        generator: layerwise, sliced, single, low_rank or directions.
        hidden: Widths of the hypernetworks' hidden layers.
        rank: The number of terms in a kernel's random part, with generator=low_rank.
        spread: Spread of generated weights at the start, in fan-in scales; 0 for the paper's
            Glorot initialisation.
        noise_dim: Dimension of z.
        noise_shared: Whether all tensors share one z.
        noise_constant_norm: Whether generators get each number of z as a point on a circle.
    """

    generator: str = "layerwise"
    hidden: tuple[int, ...] = (64, 256, 512)
    rank: int = 16
    spread: float = 0.1
    noise_dim: int = 1
    noise_shared: bool = False
    noise_constant_norm: bool = False

    def check(self) -> None:
        """Raises for an unknown generator, and for a warm start that would have no effect."""
        self.make_generator()
        if self.warm_start_epochs > 0 and not self.spread:
            raise ConfigError(
                "warm_start_epochs: generated weights start around others only with spread > 0."
            )
        super().check()

    def make_generator(self) -> generators.Generator:
        """The generator by its name."""
        if self.generator == "directions":
            return generators.Directions(self.hidden, spread=self.spread)
        if self.generator == "low_rank":
            return generators.LowRank(self.rank, self.hidden, spread=self.spread)
        start = generators.FromNetwork(self.spread) if self.spread else generators.Glorot()
        recipe = choose("generator", self.generator, _GENERATORS)
        return recipe(hidden=self.hidden, initialization=start)

    def make_noise(self) -> bbh.GaussianNoise:
        """The noise z."""
        return bbh.GaussianNoise(self.noise_dim, self.noise_shared, self.noise_constant_norm)

    def make_arguments(self, model: Model) -> dict[str, Any]:
        """The arguments of ``bbh.methods.bayes_by_hypernet``."""
        return {
            "likelihood": model.likelihood,
            "prior": model.prior,
            "generator": self.make_generator(),
            "noise": self.make_noise(),
            "divergence": self.make_divergence(),
            "num_samples": self.num_samples,
            "bayesian": model.bayesian,
        }

    def num_parameters(self, model: Model, shapes: Shapes) -> int:
        """Counted without building it: a layer-wise generator of LeNet fills a gigabyte."""
        helper = self.make_divergence().helper(shapes)
        generated = self.make_generator().num_parameters(shapes, self.make_noise().num_inputs)
        points = count(model.make_network()) - size(shapes)
        helping = 0 if helper is None else count(helper)
        return (generated + points + helping) * self.num_starts + count(model.likelihood)


@dataclass(frozen=True)
class Hypernet(GeneratedWeights):
    """Bayes by Hypernet: one implicit posterior."""

    word = "bbh"
    title = "Bayes by Hypernet"

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """An implicit posterior."""
        return methods.bayes_by_hypernet(model.make_network(), **self.make_arguments(model))


# The library's own settings of Bayes by Hypernet, spelled out so that records hold them.
DEFAULT_HYPERNET = Hypernet(
    num_samples=10,
    likelihood_samples=5,
    divergence="entropy",
    neighbours=0,
    hidden=(16, 16),
    noise_dim=4,
    noise_shared=True,
)

# The default when the settings of the image studies were chosen.
WIDER_HYPERNET = replace(DEFAULT_HYPERNET, hidden=(16, 32, 64))


# The default generator, and those whose size is in proportion to the network's: rows of studies
# that compare generators.
GENERATORS: dict[str, Hypernet] = {
    "layerwise": DEFAULT_HYPERNET,
    "low_rank": replace(DEFAULT_HYPERNET, generator="low_rank", hidden=(16, 32)),
    "directions": replace(DEFAULT_HYPERNET, generator="directions", hidden=(16, 32)),
}
# The library's prior for classes and its training, for the same studies, where the weight of the
# complexity rises over the first 30 % of the epochs.
DEFAULT_TRAINING: dict[str, Any] = {
    "prior": "fan_in",
    "prior_scale": 5.0,
    "learning_rate": 3e-3,
    "cosine_decay": True,
    "anneal_start": 0,
}
GENERATOR_TITLES = {
    "layerwise": "Layer-wise",
    "low_rank": "Low rank",
    "directions": "Directions",
}


@dataclass(frozen=True)
class Mixture(GeneratedWeights):
    """A mixture of implicit posteriors, each with its own start.

    The other settings, those of draws included, are those of each member.

    Attributes:
        num_members: How many posteriors.
    """

    word = "mixture"
    title = "Bayes by Hypernet, mixture"
    num_members: int = 5

    @staticmethod
    def of(member: Hypernet, num_members: int = 5) -> "Mixture":
        """A mixture whose members have the settings of a posterior alone."""
        return Mixture(**vars(member), num_members=num_members)

    def check(self) -> None:
        """Raises for a mixture of nothing."""
        if self.num_members < 1:
            raise ConfigError(f"num_members={self.num_members}: take at least one.")
        super().check()

    def build(self, model: Model) -> bbh.Posterior[Any]:
        """A mixture whose members have initial weights of their own."""
        return methods.mixture(
            model.make_network(),
            method=methods.bayes_by_hypernet,
            num_members=self.num_members,
            make_network=model.make_network,
            **self.make_arguments(model),
        )

    @property
    def num_starts(self) -> int:
        """One for each member."""
        return self.num_members

    @property
    def likelihood_draws(self) -> int | None:
        """The setting ``likelihood_samples`` of each member, for all of them together."""
        return self.num_members * (self.likelihood_samples or self.num_samples)
