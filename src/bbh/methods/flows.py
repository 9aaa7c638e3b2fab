"""Multiplicative normalising flows (MNF): Gaussian weights whose means are scaled by random z."""

import math
from collections.abc import Collection, Iterable
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks
from bbh.distribution import Cost, WeightDistribution
from bbh.divergences import ClosedForm, NormalMarginals
from bbh.execution import Execution
from bbh.likelihoods import Likelihood, P
from bbh.methods.assembly import assemble, check_positive
from bbh.methods.flow_steps import FlowChain, FlowKind, draw_masks, flows_together
from bbh.methods.mean_field import draw_normal
from bbh.methods.registry import register
from bbh.network import Forward, Selection, divide
from bbh.per_example import Sampling
from bbh.posterior import Posterior
from bbh.priors import Normal, Prior
from bbh.samples import Params, Samples, TensorTable, as_vector, flatten, unflatten

__all__ = ["FlowKind", "MultiplicativeFlow", "multiplicative_normalizing_flows"]


@register
def multiplicative_normalizing_flows(
    network: nn.Module,
    likelihood: Likelihood[P],
    prior: Prior = Normal(1.0),
    *,
    initial_scale: float = 0.01,
    max_scale: float = 0.5,
    flow: FlowKind = FlowKind.REAL_NVP,
    num_flows: int = 2,
    sampling: Sampling = Sampling.LOCAL,
    bayesian: Selection = None,
    freeze_rest: bool = False,
    forward: Forward | None = None,
    execution: Execution | None = None,
) -> Posterior[P]:
    """Gaussian weights with means scaled by noise from a flow, Louizos & Welling (2017).

    Args:
        initial_scale: Initial standard deviation of every weight.
        max_scale: Upper limit of the standard deviations (0.5 on MNIST, 0.3 on CIFAR5).
        flow: Masked RealNVP or planar.
        num_flows: The number of steps of the flow, and of the auxiliary flow.
        sampling: How training draws the Gaussian part: one draw per batch or one per example.
    """
    check_positive(initial_scale=initial_scale, max_scale=max_scale)
    checks.whole("num_flows", num_flows, 0, "give 0 steps or more")
    if initial_scale >= max_scale:
        # At or above the limit, the parameter that yields this scale does not exist.
        raise ValueError(f"initial_scale={initial_scale} must lie below max_scale={max_scale}.")
    network, values, points = divide(network, bayesian, freeze_rest=freeze_rest)
    return assemble(
        network,
        MultiplicativeFlow(values, initial_scale, max_scale, flow, num_flows, sampling),
        prior,
        likelihood,
        points=points,
        forward=forward,
        execution=execution,
        chosen={"bayesian": list(values)},
    )


class MultiplicativeFlow(WeightDistribution):
    """w = z ∘ loc + scale · ε, where z comes from a flow, Louizos & Welling (2017).

    z has one entry per input unit of a matrix and per output filter of a convolution. KL(q‖p) is
    bounded from above by

        E[ KL(N(z ∘ loc, scale²) ‖ p) + log q(z) − log r(z | w) ],

    summed over *all* kernels. (The paper's code leaves out the terms of the convolutions.) Biases
    are plain Gaussians. Departure from the reference: one z per weight draw instead of one per
    example, so that a draw is one function; kernels are still locally reparametrised in training.

    Args:
        loc: Initial means.
        initial_scale: Initial standard deviation.
        max_scale: Upper limit of the standard deviation (the reference's variance clip).
        kind: Which flow to use.
        steps: The number of flow steps of q, and of r.
        sampling: How training draws the Gaussian part: one draw per batch or one per example.
        penalised: Names of the tensors whose terms of the bound enter the cost. None takes all;
            only then is the cost a bound. The published results penalise dense layers only.
    """

    def __init__(
        self,
        loc: Params,
        initial_scale: float = 0.01,
        max_scale: float = 0.5,
        kind: FlowKind = FlowKind.REAL_NVP,
        steps: int = 2,
        sampling: Sampling = Sampling.LOCAL,
        *,
        penalised: Collection[str] | None = None,
    ):
        super().__init__()
        self.shapes = {name: value.shape for name, value in loc.items()}
        self.penalised = {
            name: shape
            for name, shape in self.shapes.items()
            if penalised is None or name in penalised
        }
        self.sampling = Sampling(sampling)
        self.log_max_scale = math.log(max_scale)
        self.loc = TensorTable(loc, trainable=True)
        # The inverse of the map in _scales(), so that scales start exactly at initial_scale.
        raw_scale = self.log_max_scale - math.log(max_scale / initial_scale - 1)
        self.raw_scale = TensorTable(
            {name: torch.full_like(value, raw_scale) for name, value in loc.items()},
            trainable=True,
        )
        self.axes = {
            name: 1 if len(shape) == 2 else 0
            for name, shape in self.shapes.items()
            if len(shape) >= 2
        }
        self.multipliers = nn.ModuleDict(
            {
                _key(name): MultiplierFlow(loc[name].shape[axis], kind, steps).to(loc[name])
                for name, axis in self.axes.items()
            }
        )

    def sample(self, num_samples: int) -> Samples:
        """Draws one z per draw and kernel, and Gaussian noise per draw or (in training) example."""
        sampling = self.sampling if self.training else Sampling.WEIGHTS
        locs = {name: loc.expand(num_samples, *loc.shape) for name, loc in self.loc().items()}
        latents: Params = {}
        for names in self._alike(self.axes):
            draws = draw_multipliers(self._flows(names), num_samples)
            for name, z, log_prob in zip(names, *(part.unbind() for part in draws), strict=True):
                shape = [1] * locs[name].dim()
                shape[0], shape[self.axes[name] + 1] = z.shape
                locs[name] = locs[name] * z.view(shape)
                latents |= {f"z of {name}": z, f"log q of {name}": log_prob}
        scales = {name: scale.expand_as(locs[name]) for name, scale in self._scales().items()}
        latents |= {f"loc of {name}": loc for name, loc in locs.items()}
        latents |= {f"scale of {name}": scale for name, scale in scales.items()}
        draws = {name: draw_normal(loc, scales[name], sampling) for name, loc in locs.items()}

        def masks() -> Params:
            """Random masks of the auxiliary flow, which only the cost asks for."""
            made: Params = {}
            for names in self._alike(self._penalised_kernels()):
                z = torch.stack([latents[f"z of {name}"] for name in names])
                each = draw_masks([one.reverse_flow for one in self._flows(names)], z).unbind()
                made |= {f"masks of {name}": one for name, one in zip(names, each, strict=True)}
            return made

        return Samples(draws, latents=latents, later=masks)

    def cost(self, samples: Samples, prior: Prior) -> Cost:
        """The bound on KL(q‖p), averaged over the draws and evaluated at their z."""
        plain = {name: value.as_subclass(Tensor) for name, value in samples.items()}
        locs = {name: samples.latent(f"loc of {name}") for name in self.penalised}
        # All draws have the same scales, so the first draw's are enough.
        scales = {name: samples.latent(f"scale of {name}")[:1] for name in self.penalised}
        marginals = NormalMarginals(flatten(locs, self.penalised), as_vector(scales))
        complexity = ClosedForm()(plain, self.penalised, prior, marginals=marginals).complexity
        for names in self._alike(self._penalised_kernels()):
            z, log_prob, masks = (
                torch.stack([samples.latent(f"{what} of {name}") for name in names])
                for what in ("z", "log q", "masks")
            )
            kernels = [
                plain[name].movedim(self.axes[name] + 1, -1).flatten(1, -2) for name in names
            ]
            reverse = reverse_log_prob(self._flows(names), z, kernels, masks)
            complexity = complexity + (log_prob - reverse).mean(1).sum()
        return Cost(complexity)

    def _penalised_kernels(self) -> list[str]:
        return [name for name in self.axes if name in self.penalised]

    def _scales(self) -> Params:
        # A smooth upper limit: at a hard limit the gradient is zero, and a scale that reached it
        # could never become smaller again.
        limit = self.log_max_scale
        raw = self.raw_scale()
        scales = (limit - F.softplus(limit - as_vector(raw))).exp()
        return {
            name: scale[0].to(raw[name].dtype)
            for name, scale in unflatten(scales[None], self.shapes).items()
        }

    def _alike(self, names: Iterable[str]) -> list[list[str]]:
        """Groups of kernels whose z have equal length and type, so their flows run together."""
        locs = self.loc()
        groups: dict[tuple[int, torch.dtype], list[str]] = {}
        for name in names:
            key = (self.shapes[name][self.axes[name]], locs[name].dtype)
            groups.setdefault(key, []).append(name)
        return list(groups.values())

    def _flows(self, names: list[str]) -> "list[MultiplierFlow]":
        return [cast(MultiplierFlow, self.multipliers[_key(name)]) for name in names]


class MultiplierFlow(nn.Module):
    """Parameters for the z of one kernel: the flow q(z), and the auxiliary r(z | W) of the bound.

    Args:
        dim: The number of entries of z.
        kind: Which flow to use.
        steps: The number of flow steps of q, and of r.
    """

    def __init__(self, dim: int, kind: FlowKind, steps: int):
        super().__init__()
        self.loc = nn.Parameter(1 + 0.05 * torch.randn(dim))
        self.log_variance = nn.Parameter(torch.full((dim,), math.log(0.1)))
        # Hidden widths of the reference code: 50 for q, 100 for r.
        self.flow = FlowChain(kind, dim, steps, hidden=50)
        self.reverse_flow = FlowChain(kind, dim, steps, hidden=100)
        self.projection = nn.Parameter(0.05 * torch.randn(dim))
        self.reverse_loc = nn.Parameter(0.05 * torch.randn(dim))
        self.reverse_log_precision = nn.Parameter(0.05 * torch.randn(dim))


def draw_multipliers(
    flows: list[MultiplierFlow], num_samples: int
) -> tuple[Float[Tensor, "G S Z"], Float[Tensor, "G S"]]:
    """Draws of z, and their E[log q(z₀)] − log|det|.

    This is the log density of z, with that of the starting point z₀ replaced by its expectation.

    Args:
        flows: One flow for each kernel; all their z have the same number of entries.
        num_samples: The number of draws from each flow.
    """
    loc = torch.stack([one.loc for one in flows]).unsqueeze(1)
    log_variance = torch.stack([one.log_variance for one in flows]).unsqueeze(1)
    shape = (len(flows), num_samples, loc.shape[-1])
    noise = torch.randn(shape, device=loc.device, dtype=loc.dtype)
    start = loc + (0.5 * log_variance).exp() * noise
    chains = [one.flow for one in flows]
    z, log_det = flows_together(chains, start, draw_masks(chains, start))
    base = -0.5 * (math.log(2 * math.pi) + 1 + log_variance).sum(2)
    return z, base - log_det


def reverse_log_prob(
    flows: list[MultiplierFlow],
    z: Float[Tensor, "G S Z"],
    kernels: list[Float[Tensor, "S _ Z"]],
    masks: Bool[Tensor, "G S steps Z"],
) -> Float[Tensor, "G S"]:
    """log r(z | W): a Gaussian after a flow, whose moments depend on the sampled kernel."""
    summary = torch.stack(
        [
            torch.tanh(kernel @ one.projection).mean(1, keepdim=True)
            for one, kernel in zip(flows, kernels, strict=True)
        ]
    )
    loc = summary * torch.stack([one.reverse_loc for one in flows]).unsqueeze(1)
    precisions = torch.stack([one.reverse_log_precision for one in flows]).unsqueeze(1)
    log_precision = summary * precisions
    mapped, log_det = flows_together([one.reverse_flow for one in flows], z, masks)
    squared = (mapped - loc).square() * log_precision.exp()
    log_prob = 0.5 * (log_precision - squared - math.log(2 * math.pi)).sum(2)
    return log_prob + log_det


def _key(name: str) -> str:
    # Prefixed, because nn.ModuleDict refuses the names of its own methods (keys, values, …).
    return "z/" + name.replace(".", "/")
