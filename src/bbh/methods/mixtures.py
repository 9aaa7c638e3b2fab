"""Mixtures: several posteriors of one method, each with its own start, as one posterior."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn

from bbh import checks
from bbh.distribution import Cost, WeightDistribution
from bbh.execution import Execution, Fork
from bbh.likelihoods import Likelihood, P
from bbh.methods.hypernet import bayes_by_hypernet
from bbh.methods.registry import register
from bbh.methods.starts import MakeNetwork, starts
from bbh.network import Forward, Selection
from bbh.posterior import Posterior
from bbh.priors import Prior
from bbh.samples import Params, Samples, Shapes, TensorTable

__all__ = ["Mixture", "mixture"]


@register
def mixture(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior | None = None,
    *,
    method: Callable[..., Posterior[Any]] = bayes_by_hypernet,
    num_members: int = 5,
    make_network: MakeNetwork | None = None,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
    **arguments: Any,
) -> Posterior[P]:
    """Several posteriors of one method, each with its own start, trained side by side.

    One posterior lies around one solution of the training problem; a mixture has members around
    several. The first member starts from ``network`` as it is, the others from a fresh
    initialisation. Each has its own parameters and batch-norm statistics. They share batches,
    parameters that are frozen, and those of the likelihood, such as learned noise.

    Members take turns in draws: all have the same share, and ``predict(num_samples=100)`` takes 20
    draws of each of five. A training step has as many draws of each member as the method takes, and
    ``fit(num_samples=…)`` counts those of all members together. The loss is the mean over members.
    Adam ignores its scale, so that each member is trained as it would be alone. Plain SGD takes
    steps that are num_members times smaller, weight decay of the optimizer counts for as much more,
    and ``gradient_clip`` limits the norm of all members' gradients together.

    Args:
        prior: Distribution of the Bayesian weights before the data; None takes the method's own.
        method: Makes a member: any of ``bbh.methods``, or one with some of its arguments, such as
            ``functools.partial(bbh.methods.deep_ensemble, num_members=2)``.
        num_members: The number of members.
        make_network: Makes a network for each further member: a trained one, or one for which
            calling ``reset_parameters`` on the modules of a copy would not be enough.
        arguments: Further arguments of the method.
    """
    checks.function("method", method, "bbh.methods.bayes_by_hypernet")
    # What was left open is left to the method, whose own arguments may say it.
    shared = {"prior": prior, "bayesian": bayesian, "freeze_rest": freeze_rest or None}
    arguments |= {name: value for name, value in shared.items() if value is not None}
    posteriors = [
        method(one, likelihood, forward=forward, execution=execution, **arguments)
        for one in starts(network, num_members, make_network)
    ]
    # The first member's posterior becomes the mixture's: it has the network, the frozen parameters
    # and all else that the method decides.
    whole = posteriors[0]
    names = _changing_buffers(whole)
    buffers = [{name: one.constants[name].clone() for name in names} for one in posteriors]
    whole.replace_weights(Mixture([one.weights for one in posteriors], buffers))
    recipe = whole.recipe
    whole.chosen = {
        **({} if recipe is None else recipe.arguments),
        "method": recipe or method,
        "num_members": num_members,
        # Only the start needs it: a stored posterior brings its own weights.
        "make_network": None,
    }
    return whole


class Mixture(WeightDistribution):
    """q(w) = 1/K Σ_k q_k(w).

    The cost is the mean of the members' costs, an upper bound on KL(q‖p):

        KL(q‖p) = 1/K Σ_k KL(q_k‖p) − I,   0 ≤ I = 1/K Σ_k KL(q_k‖q) ≤ log K.

    I says how well a draw tells which member it came from. For members that are all the same it is
    zero, and the bound is exact. For members that do not overlap it is log K, the entropy of the
    choice of a member: the cost is then too large by exactly that, a constant without influence on
    training.

    Args:
        members: Distributions q_k over the same tensors.
        buffers: For each member, the network's buffers that belong to it alone (batch-norm
            statistics). Members whose draws need statistics of their own have none here; see
            ``statistics_differ``.
    """

    def __init__(
        self, members: Sequence[WeightDistribution], buffers: Sequence[Params] | None = None
    ):
        super().__init__()
        first = members[0]
        for one in members[1:]:
            if one.shapes != first.shapes:
                different = sorted(set(one.shapes.items()) ^ set(first.shapes.items()))
                raise ValueError(
                    "members of a mixture cover the same tensors, and these differ: "
                    f"{', '.join(dict.fromkeys(name for name, _ in different))}. Does "
                    "make_network() give networks like the first?"
                )
        self.members = nn.ModuleList(members)
        self.buffers_of_members = nn.ModuleList(
            TensorTable(one, trainable=False) for one in buffers or [{} for _ in members]
        )
        number = len(members)
        self.shapes = first.shapes
        self.num_members = number
        self.turns = number * first.turns
        self.samples_per_step = number * first.samples_per_step
        if first.likelihood_samples is not None:
            self.likelihood_samples = number * first.likelihood_samples
        self.training_defaults = first.training_defaults
        distinct = [one.num_distinct for one in members]
        if None not in distinct:
            self.num_distinct = sum(one for one in distinct if one is not None)
        self.statistics_differ = any(one.statistics_differ for one in members)
        self.auxiliary_steps = max(one.auxiliary_steps for one in members)
        self.pretraining_steps = max(one.pretraining_steps for one in members)

    def sample(self, num_samples: int) -> Samples:
        """Members in turn; those that an incomplete last round leaves out are random."""
        number = len(self.members)
        rounds, rest = divmod(num_samples, number)
        last = torch.randperm(number)[:rest].tolist() if rest else []
        turns = [*range(number)] * rounds + last
        draws = {
            member: Fork(lambda one=member: self._draw(one, turns.count(one)))
            for member in dict.fromkeys(turns)
        }
        return Samples.in_turn({member: one.result() for member, one in draws.items()}, turns)

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The mean of the costs of all members that these draws come from."""
        if not samples.members:
            raise KeyError(
                "these draws do not know their members. cost() needs draws that sample() of the "
                "same distribution gave, or a part of them, not tensors from elsewhere."
            )
        members = self._members()
        forks = [
            Fork(lambda one=members[number], draws=draws: one.cost(draws, prior), draws)
            for number, draws in samples.members.items()
        ]
        costs = [fork.result() for fork in forks]
        complexity = torch.stack([cost.complexity for cost in costs]).mean()
        return Cost(complexity, sum((cost.auxiliary for cost in costs), start=0.0) / len(costs))

    def draws_per_step(self, likelihood_samples: int | None = None) -> int:
        """The same number for every member."""
        number = len(self.members)
        each = None if likelihood_samples is None else likelihood_samples // number
        return number * self._members()[0].draws_per_step(each)

    def check_prior(self, prior: Prior) -> None:
        """Raises if the prior does not fit one of the members."""
        for member in self._members():
            member.check_prior(prior)

    def end_epoch(self) -> None:
        """Passes the end of an epoch on to every member."""
        for member in self._members():
            member.end_epoch()

    def some_members(self, members: Sequence[int]) -> "Mixture":
        """A mixture of these members themselves, so that training it trains them here too."""
        part = Mixture([self._members()[number] for number in members])
        part.buffers_of_members = nn.ModuleList(
            [self.buffers_of_members[number] for number in members]
        )
        return part

    def put_members(self, members: Sequence[int], part: WeightDistribution) -> None:
        """Nothing to do: the part's members are the mixture's own."""

    def random_shapes(self) -> Shapes:
        """All tensors: those that are points in each member differ between members."""
        return self.shapes if len(self.members) > 1 else self._members()[0].random_shapes()

    def own_temperature(self, num_data: float) -> float:
        """That of each member."""
        return self._members()[0].own_temperature(num_data)

    def noise_groups(self) -> dict[tuple[str, ...], int]:
        """None, since draws do not differ by their noise alone but also by their member."""
        return {} if len(self.members) > 1 else self._members()[0].noise_groups()

    def factored_parameters(self) -> list[nn.Parameter]:
        """The factored parameters of all members."""
        return [one for member in self._members() for one in member.factored_parameters()]

    def _draw(self, member: int, number: int) -> Samples:
        """Draws of one member; if it has buffers of its own, all its draws share them."""
        own = cast(TensorTable, self.buffers_of_members[member])()
        shared = {name: value.expand(number, *value.shape) for name, value in own.items()}
        return self._members()[member].sample(number).with_buffers(shared)

    def _members(self) -> list[WeightDistribution]:
        return cast(list[WeightDistribution], list(self.members))


def _changing_buffers(posterior: Posterior[Any]) -> list[str]:
    """Names of buffers that training changes, and that draws of one setting of weights follow.

    There are none if every draw gets batch-norm statistics of its own anyway, or brings them.
    """
    if posterior.weights.statistics_differ:
        return []
    tables = [one for one in posterior.weights.modules() if isinstance(one, TensorTable)]
    brought = {name for table in tables for name in table}
    before = posterior.training
    modules = dict(posterior.train().network.named_modules())
    # A module that is in evaluation mode even now stays as it is, for all members.
    training = {name for name, module in modules.items() if module.training}
    posterior.train(before)
    names = [name for name, _ in posterior.network.named_buffers() if name not in brought]
    return [name for name in names if name.rpartition(".")[0] in training]
