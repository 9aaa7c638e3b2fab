"""SWAG (stochastic weight averaging, Gaussian): a Gaussian fitted to weights during training."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bbh.distribution import Cost, WeightDistribution
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.posterior import Posterior
from bbh.priors import Normal, Prior
from bbh.samples import Params, Samples, Shapes, TensorTable, as_vector, unflatten

__all__ = ["TrajectoryGaussian", "stochastic_weight_averaging"]


@register
def stochastic_weight_averaging(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    rank: int = 20,
    skip_epochs: int = 0,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """A Gaussian around a trained network, Maddox et al. (2019), known as SWAG.

    Training starts from the network's own weights, and after every epoch of ``bbh.fit`` the weights
    are collected. Their mean, their variances and their last deviations from the mean define the
    posterior. The method is meant for networks that are already trained: run ``fit`` for 20 epochs
    or more, with a step size at which the weights move but the loss does not rise, such as
    ``optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)``. A training
    loop of your own calls ``posterior.weights.end_epoch()`` after every epoch, as ``fit`` does.

    Args:
        rank: The number of last deviations to keep; each takes the memory of one network.
        skip_epochs: The number of epochs to train before weights are collected, for a network that
            is not trained yet.
    """
    if rank < 2:
        raise ValueError(f"rank={rank}: keep at least two deviations.")
    if skip_epochs < 0:
        raise ValueError(f"skip_epochs={skip_epochs}: it is a number of epochs, 0 or more.")
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    return assemble(
        network,
        TrajectoryGaussian(values, rank, skip_epochs),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        chosen={"bayesian": list(values)},
    )


class TrajectoryGaussian(WeightDistribution):
    """q(w) = N(mean, ½ diag(variance) + 1/(2(K − 1)) Σ_k d_k d_kᵀ), Maddox et al. (2019), eq. 1.

    The mean and the variance are taken over the weights at the end of each epoch. The d_k are the
    last K deviations w_k − mean, each from the running mean at the time. In training mode every
    draw is the point that is being trained, and its cost is −log p, as in MAP.

    Args:
        start: Weights to start from.
        rank: The largest number K of deviations.
        skip_epochs: The number of first epochs whose weights are not collected.
    """

    def __init__(self, start: Params, rank: int = 20, skip_epochs: int = 0):
        super().__init__()
        self.shapes = {name: value.shape for name, value in start.items()}
        self.point = TensorTable(start, trainable=True)
        self.skip_epochs = skip_epochs
        vector = as_vector(start)
        self.register_buffer("mean", vector.clone())
        self.register_buffer("squares", torch.zeros_like(vector))
        self.register_buffer("deviations", vector.new_zeros(rank, len(vector)))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.long))

    mean: Tensor
    squares: Tensor
    deviations: Tensor
    epochs: Tensor

    def sample(self, num_samples: int) -> Samples:
        """The trained point in training; else mean + √½ · (scale · ε + D ε′/√(K − 1))."""
        point = self.point()
        # Training mode is checked first: num_collected reads a number from the device, which is
        # not allowed while a training step is recorded as a CUDA graph.
        if self.training or self.num_collected < 2:
            return Samples({n: v.expand(num_samples, *v.shape) for n, v in point.items()})
        scale = (self.squares / self.num_collected).sqrt()
        kept = self.deviations[: self.num_collected]
        draws = self.mean + math.sqrt(0.5) * (
            scale * self._noise(num_samples, len(self.mean))
            + self._noise(num_samples, len(kept)) @ kept / math.sqrt(len(kept) - 1)
        )
        parts = unflatten(draws, self.shapes)
        return Samples({name: value.to(point[name].dtype) for name, value in parts.items()})

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """Mean of −log p over the draws; in training this is −log p of the trained point."""
        return Cost(-prior.log_density(samples, self.shapes).mean())

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Adds the weights of this epoch to the mean, the variance and the deviations."""
        self.epochs += 1
        number = self.num_collected
        if number == 0:
            return
        vector = as_vector(self.point()).to(self.mean.dtype)
        before = vector - self.mean
        self.mean.lerp_(vector, 1 / number)
        deviation = vector - self.mean
        # Welford's update: it stays accurate when weights are large compared with their spread.
        self.squares.addcmul_(before, deviation)
        # The newest deviation replaces the oldest: the order of the rows does not matter.
        self.deviations[(number - 1) % len(self.deviations)] = deviation

    def random_shapes(self) -> Shapes:
        """All tensors, once at least two epochs are collected; before that, none."""
        return self.shapes if self.num_collected >= 2 else {}

    @property
    def num_collected(self) -> int:
        """The number of epochs whose weights are in the mean."""
        return max(0, int(self.epochs) - self.skip_epochs)

    def _noise(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.randn(*shape, dtype=self.mean.dtype, device=self.mean.device)
