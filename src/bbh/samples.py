"""Draws of a network's weights: named, stacked tensors, and the quantities they were made from.

Nothing in the library writes weights into a network; weights are passed to it as arguments.
"""

import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.per_example import PerExampleWeight
from bbh.stacking import changed, in_turn, taken, unstacked

# One weight setting, or several of them stacked.
Params = dict[str, Tensor]
Shapes = dict[str, torch.Size]


class Samples(Mapping[str, Tensor]):
    """S weight settings ``{name: [S, *shape]}``, and the quantities they were made from.

    The object reads like a dictionary. It may also hold the network's buffers, one set for each
    draw. ``weights.cost(samples, prior)`` needs nothing else: whatever a distribution must know
    about its draws besides their values is stored here, and stays with the draws when some of them
    are taken or when all are moved to another device.

    Args:
        tensors: The draws, stacked along the first axis.
        latents: Quantities that each draw has of its own, ``{name: [S, …]}``, such as the noise it
            was made from.
        common: Quantities that all draws share, such as the means and scales of a Gaussian.
        parts: The draws of each factor, if the distribution is a product.
        later: Makes further latents of the draws, when they are first needed: random numbers that
            a cost takes and a prediction does not. They are made once, before any copy.

    Attributes:
        members: The draws of each member, by its number, if the distribution is a mixture; see
            ``in_turn``.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        *,
        latents: Mapping[str, Tensor] | None = None,
        common: Mapping[str, Tensor] | None = None,
        parts: Sequence["Samples"] = (),
        later: Callable[[], Params] | None = None,
    ):
        self._tensors = dict(tensors)
        self._latents = dict(latents or {})
        self._common = dict(common or {})
        self.parts = tuple(parts)
        self._later = [] if later is None else [later]
        self.members: dict[int, Samples] = {}
        self._turns: tuple[int, ...] = ()
        # Tensors of all members in one, made when somebody asks for them.
        self._stacked: Params = {}

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "Samples":
        """Wraps draws from any source, such as a Markov chain; they have no latents."""
        return tensors if isinstance(tensors, Samples) else Samples(tensors)

    @staticmethod
    def joined(parts: Sequence["Samples"]) -> "Samples":
        """Joins the draws of several distributions over disjoint tensors into one object."""
        return Samples({n: value for part in parts for n, value in part.items()}, parts=parts)

    @staticmethod
    def in_turn(members: Mapping[int, "Samples"], turns: Iterable[int]) -> "Samples":
        """Draws of several distributions over the same tensors, which take turns.

        Their tensors are stacked only when somebody asks for them. Draws that run one after the
        other stay what each member gave: buffers that a network writes to are the member's own.

        Args:
            members: The draws of each distribution that has any, by the number of the distribution.
            turns: For each draw, the number of the distribution whose next draw it is.
        """
        samples = Samples({})
        samples.members, samples._turns = dict(members), tuple(turns)
        return samples

    @property
    def num_samples(self) -> int:
        """S, the number of weight settings."""
        if self.members or not self._tensors:
            return len(self._turns)
        return len(next(iter(self._tensors.values())))

    @property
    def device(self) -> torch.device:
        """The device of the draws."""
        if self.members:
            return self._first_member().device
        return next(iter(self._tensors.values())).device

    @property
    def vary_by_example(self) -> bool:
        """Whether each example of a batch gets its own weights (``PerExampleWeight``)."""
        return any(isinstance(one, PerExampleWeight) for one in self._tensors.values()) or any(
            member.vary_by_example for member in self.members.values()
        )

    def shape(self, name: str) -> torch.Size:
        """The shape that a tensor has in a single draw."""
        if name in self._tensors or not self.members:
            return self._tensors[name].shape[1:]
        return self._first_member().shape(name)

    def shares(self, name: str) -> bool:
        """Whether all draws share a quantity of this name."""
        return name in self._common

    def latent(self, name: str) -> Tensor:
        """The latent quantity of this name: one for each draw, or one that all draws share."""
        if name in self._common:
            return self._common[name]
        if name not in self._latents:
            self._complete()
        if name not in self._latents:
            raise KeyError(
                f"these draws do not know their {name!r}. cost() needs draws that sample() of the "
                "same distribution gave, or a part of them, not tensors from elsewhere."
            )
        return self._latents[name]

    def take(self, draws: slice) -> "Samples":
        """Some of the draws, as views, with their latent quantities."""
        if self.members:
            return self._take_in_turn(draws)
        return self._each(
            lambda value: taken(value, draws), lambda part: part.take(draws), common=False
        )

    def to(self, device: torch.device | str) -> "Samples":
        """The same draws on another device."""
        return self._each(
            lambda value: changed(value, lambda tensor: tensor.to(device)),
            lambda part: part.to(device),
        )

    def detach(self) -> "Samples":
        """The same values without gradient."""
        return self._each(lambda value: changed(value, Tensor.detach), lambda part: part.detach())

    def with_buffers(self, buffers: Mapping[str, Tensor]) -> "Samples":
        """The same draws, with the network's buffers for each draw, ``{name: [S, *shape]}``."""
        other = Samples(self._tensors | dict(buffers), common=self._common, parts=self.parts)
        # The same objects: what is made later is made once for both.
        other._latents, other._later = self._latents, self._later
        other.members, other._turns = self.members, self._turns
        return other

    def held(self) -> Iterator[Tensor]:
        """All tensors that these draws hold so far: of parts and members, and latent ones too."""
        for table in (self._tensors, self._latents, self._common, self._stacked):
            yield from table.values()
        for one in (*self.parts, *self.members.values()):
            yield from one.held()

    def values_only(self) -> "Samples":
        """The draws without latent quantities: enough for prediction, and smaller in memory."""
        return Samples(dict(self.items()))

    def apart(self) -> list[Params]:
        """The draws as a list of single weight settings.

        The backward pass builds one stacked gradient for each tensor. Indexing S times would build
        S stacked gradients, each zero except for one draw, and add them up.
        """
        columns = {name: unstacked(value) for name, value in self._tensors.items()}
        rows = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
        if not self.members:
            return rows
        each = {number: iter(member.apart()) for number, member in self.members.items()}
        drawn = [next(each[number]) for number in self._turns]
        return [one | more for one, more in zip(drawn, rows, strict=True)] if rows else drawn

    def _each(
        self,
        change: Callable[[Tensor], Tensor],
        change_part: Callable[["Samples"], "Samples"],
        *,
        common: bool = True,
    ) -> "Samples":
        """A copy with every tensor changed, every part, and common quantities if asked."""
        self._complete()
        parts = [change_part(part) for part in self.parts]
        # A product's tensors are the tensors of its parts: change each of them only once.
        done = {name: value for part in parts for name, value in part.items()}
        copy = Samples(
            {n: done[n] if n in done else change(value) for n, value in self._tensors.items()},
            latents={name: change(value) for name, value in self._latents.items()},
            common={n: change(v) for n, v in self._common.items()} if common else self._common,
            parts=parts,
        )
        copy.members = {number: change_part(one) for number, one in self.members.items()}
        copy._turns = self._turns
        return copy

    def _take_in_turn(self, draws: slice) -> "Samples":
        """Some of the draws of members that take turns."""
        first, last, step = draws.indices(len(self._turns))
        if step != 1:
            raise ValueError(f"take draws of a mixture that lie side by side, not every {step}.")
        turns, before = self._turns[first:last], self._turns[:first]
        members = {
            number: self.members[number].take(slice(start, start + turns.count(number)))
            for number in dict.fromkeys(turns)
            for start in [before.count(number)]
        }
        some = Samples.in_turn(members, turns)
        return some.with_buffers({n: taken(v, draws) for n, v in self._tensors.items()})

    def _first_member(self) -> "Samples":
        return next(iter(self.members.values()), self)

    def _complete(self) -> None:
        """Makes the latents that were left for later."""
        while self._later:
            self._latents |= self._later.pop()()

    def __getstate__(self) -> dict[str, Any]:
        self._complete()  # a file holds tensors, not functions
        return vars(self)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._tensors or not self.members:
            return self._tensors[name]
        if name not in self._stacked:
            each = {number: member[name] for number, member in self.members.items()}
            self._stacked[name] = in_turn(each, self._turns)
        return self._stacked[name]

    def __iter__(self) -> Iterator[str]:
        if not self.members:
            return iter(self._tensors)
        return iter(dict.fromkeys((*self._first_member(), *self._tensors)))

    def __len__(self) -> int:
        return len(list(iter(self))) if self.members else len(self._tensors)

    # The mapping's own would ask for every tensor by name, many times in a training step.
    def items(self) -> ItemsView[str, Tensor]:
        """Names and tensors."""
        return super().items() if self.members else self._tensors.items()

    def values(self) -> ValuesView[Tensor]:
        """The tensors."""
        return super().values() if self.members else self._tensors.values()

    def __repr__(self) -> str:
        shapes = (f"{name}: {[self.num_samples, *self.shape(name)]}" for name in self)
        return f"Samples({', '.join(shapes)})"


def size(shapes: Shapes) -> int:
    """Number of weights D in all tensors together.

    >>> size({"weight": torch.Size([2, 3]), "bias": torch.Size([2])})
    8
    """
    return sum(math.prod(shape) for shape in shapes.values())


def flatten(samples: Mapping[str, Tensor], shapes: Shapes) -> Float[Tensor, "S D"]:
    """Lays the tensors named by ``shapes`` side by side, one row for each draw.

    >>> flatten({"b": torch.ones(4, 2), "w": torch.zeros(4, 3, 1)}, {"w": torch.Size([3, 1])}).shape
    torch.Size([4, 3])
    """
    # Not flatten(1): stacked scalars [S] have no second axis.
    return torch.cat(
        [samples[name].reshape(-1, math.prod(shape)) for name, shape in shapes.items()], dim=1
    )


def unflatten(matrix: Float[Tensor, "S D"], shapes: Shapes) -> Params:
    """Cuts rows of D weights back into named tensors: the inverse of ``flatten``."""
    if len(shapes) == 1:
        # The gradient of a split is joined from its pieces in new memory, even if there is one.
        ((name, shape),) = shapes.items()
        return {name: matrix.unflatten(1, shape) if len(shape) else matrix.squeeze(1)}
    pieces = matrix.split([math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: piece.unflatten(1, shape) if len(shape) else piece.squeeze(1)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def unflatten_parts(parts: Iterable[tuple[Float[Tensor, "S _"], Shapes]]) -> Params:
    """The same for several matrices, each with the shapes of its own tensors."""
    return {name: value for part in parts for name, value in unflatten(*part).items()}


def as_vector(values: Mapping[str, Tensor]) -> Float[Tensor, " D"]:
    """Concatenates the tensors of one weight setting into a vector."""
    return torch.cat([value.flatten() for value in values.values()])


def stack(settings: Sequence[Mapping[str, Tensor]]) -> Params:
    """Stacks several weight settings into ``{name: [S, *shape]}``, without gradient."""
    return {
        name: torch.stack([setting[name].detach() for setting in settings]) for name in settings[0]
    }


class TensorTable(nn.Module):
    """Tensors under dotted names, as trainable parameters or as buffers.

    ``nn.ParameterDict`` refuses dots, so they are stored as slashes: the state dictionary
    of a table reads ``conv1/weight``.

    Args:
        tensors: The tensors by name.
        trainable: Whether they are parameters, and not buffers.
        persistent: Whether buffers are part of the state dictionary.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, trainable: bool, persistent: bool = True):
        super().__init__()
        self._keys = {name: name.replace(".", "/") for name in tensors}
        for name, value in tensors.items():
            key = self._keys[name]
            if trainable:
                self.register_parameter(key, nn.Parameter(value))
            else:
                self.register_buffer(key, value, persistent=persistent)

    def replace(self, name: str, value: Tensor) -> None:
        """Puts another tensor in the place of a buffer."""
        self._buffers[self._keys[name]] = value

    def forward(self) -> Params:
        """The tensors under their own names."""
        held = cast(Params, self._parameters or self._buffers)
        return {name: held[key] for name, key in self._keys.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, name: str) -> Tensor:
        return getattr(self, self._keys[name])
