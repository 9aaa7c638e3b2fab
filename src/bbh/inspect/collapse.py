"""Signs that a distribution over weights has become a point, a line or a single function."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bbh.inspect.dimension import EffectiveDimension
from bbh.inspect.diversity import Diversity
from bbh.inspect.spread import Spread

# A tensor has no spread if its standard deviation is below this share of its fan-in scale. Units
# then vary by a thousandth of their size, too little to show in any prediction. In the toy and
# digits studies the medians lie between 0.05 and 10.
NO_SPREAD = 1e-3
# Below this KL in nats between their predictions, two draws count as one function.
NO_DIVERSITY = 1e-4


@dataclass(frozen=True)
class Sign:
    """A sign of collapse.

    Attributes:
        name: Name of the sign, in a few words.
        seen: The numbers that were measured.
        suggests: What the sign may mean, and what to check next.
    """

    name: str
    seen: str
    suggests: str

    def __str__(self) -> str:
        return f"sign of collapse, {self.name}: {self.seen}; {self.suggests}"


def signs_of_collapse(
    spread: Spread,
    dimension: EffectiveDimension,
    noise: Mapping[tuple[str, ...], int],
    diversity: Diversity | None,
) -> tuple[Sign, ...]:
    """All signs of collapse. They do not prove a collapse, nor does their absence exclude one.

    Args:
        spread: Spread of all weights that have a distribution.
        dimension: Effective dimension of the same weights.
        noise: Dimension of the noise from which each group of tensors is generated.
        diversity: Functional diversity on inputs where draws should differ, if it was measured.
    """
    if not bool((spread.everywhere > 0).any()):
        return (
            Sign(
                "all draws are equal",
                "no weight varies at all",
                "the distribution is a point; is it one by design, or does the generator ignore "
                "its noise?",
            ),
        )
    return (
        *_narrow_tensors(spread),
        *_unused_noise(spread, dimension, noise),
        *_one_function(diversity),
    )


def _narrow_tensors(spread: Spread) -> Iterator[Sign]:
    medians = {name: float(spread.relative(name).median()) for name in spread.stds}
    narrow = {name: value for name, value in medians.items() if value < NO_SPREAD}
    if narrow:
        worst = min(narrow, key=lambda name: narrow[name])
        yield Sign(
            "no spread",
            f"{len(narrow)} of {len(medians)} tensors spread by less than {NO_SPREAD:g} of their "
            f"fan-in scale, {worst} by {narrow[worst]:.1g}",
            "they are points in all but name: see whether training had begun to widen them, and "
            "whether the complexity has any weight",
        )


def _unused_noise(
    spread: Spread, dimension: EffectiveDimension, noise: Mapping[tuple[str, ...], int]
) -> Iterator[Sign]:
    unused: dict[str, tuple[float, int]] = {}
    for names, dim in noise.items():
        found = dimension.noise.get(names)
        weights = sum(spread.stds[name].numel() for name in names)
        # The mean effective dimension of a random linear map of the noise. Less than half of it
        # does not happen by chance.
        expected = dim * weights / (dim + weights)
        if dim > 1 and found is not None and found < expected / 2:
            title = names[0] if len(names) == 1 else f"{len(names)} tensors together"
            unused[title] = (found, dim)
    if unused:
        worst = min(unused, key=lambda name: unused[name][0])
        found, dim = unused[worst]
        yield Sign(
            "unused noise",
            f"{len(unused)} of {len(noise)} generated parts vary in far fewer directions than "
            f"their noise, {worst} in {found:.1f} for {dim}",
            "the generator may ignore most of its noise: compare with a smaller noise dimension",
        )


def _one_function(diversity: Diversity | None) -> Iterator[Sign]:
    if diversity is not None and diversity.kl < NO_DIVERSITY:
        yield Sign(
            "one function",
            str(diversity),
            "draws differ in their weights and not in what they predict here: try inputs far from "
            "the training data before calling it collapse",
        )
