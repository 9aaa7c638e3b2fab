"""Quality of real-valued predictions, each an equal mixture of S Gaussians, one per draw."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from bbh.metrics import checks


def rmse(mean: Float[Tensor, "B *outputs"], targets: Float[Tensor, "B *outputs"]) -> float:
    """Root mean squared error over all elements.

        √(1/n · Σ_i (mean_i − y_i)²)

    Args:
        mean: Predictive mean, averaged over the draws.
        targets: True values.

    Examples:
        >>> rmse(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 7.0]))
        5.0
    """
    mean, targets = checks.numbers("mean", mean), checks.numbers("targets", targets)
    checks.same_shape("mean", mean, "targets", targets)
    return math.sqrt((mean - targets).square().mean().item())


def mae(mean: Float[Tensor, "B *outputs"], targets: Float[Tensor, "B *outputs"]) -> float:
    """Mean absolute error over all elements, which outliers change less than the RMSE.

        1/n · Σ_i |mean_i − y_i|

    Args:
        mean: Prediction.
        targets: True values.

    Examples:
        >>> mae(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -7.0]))
        4.0
    """
    mean, targets = checks.numbers("mean", mean), checks.numbers("targets", targets)
    checks.same_shape("mean", mean, "targets", targets)
    return float((mean - targets).abs().mean().item())


def pinball(
    quantile: Float[Tensor, "B *outputs"], targets: Float[Tensor, "B *outputs"], level: float
) -> float:
    """Pinball loss of predicted quantiles, in units of the targets; low is good.

        1/n · Σ_i max(τ (y_i − q_i), (τ − 1) (y_i − q_i))

    The true τ-quantile has the lowest expected loss: Koenker & Bassett (1978), "Regression
    quantiles". For τ = ½ it is half the mean absolute error.

    Args:
        quantile: Predicted quantiles.
        targets: True values.
        level: τ, the share of targets that should lie below.

    Examples:
        >>> pinball(torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0]), 0.75)
        0.5
    """
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")
    quantile, targets = checks.numbers("quantile", quantile), checks.numbers("targets", targets)
    checks.same_shape("quantile", quantile, "targets", targets)
    away = targets - quantile
    return float(torch.maximum(level * away, (level - 1) * away).mean().item())


def gaussian_mixture_nll(
    locs: Float[Tensor, "S B *outputs"],
    scales: Float[Tensor, "..."] | float,
    targets: Float[Tensor, "B *outputs"],
) -> float:
    """Mean negative log density of the targets under the mixture, in nats per example.

        −1/B · Σ_b log 1/S · Σ_s Π_o N(y_bo; loc_sbo, scale²_sbo)

    The outputs o of one example are independent only given the draw, so the product is inside the
    mixture. This is the logarithmic score of Gneiting & Raftery (2007).

    Args:
        locs: Means of each draw.
        scales: Standard deviations, positive, broadcast to `locs`.
        targets: True values.

    Examples:
        >>> round(gaussian_mixture_nll(torch.zeros(2, 1), 1.0, torch.zeros(1)), 4)
        0.9189
    """
    locs, scales, targets = _mixture(locs, scales, targets)
    if scales.min() <= 0:
        raise ValueError(
            "scales: zero, and the density of a point is infinite; use positive noise, or crps"
        )
    log_probs = Normal(locs, scales, validate_args=False).log_prob(targets)
    per_draw = log_probs.reshape(*locs.shape[:2], -1).sum(dim=-1)
    return math.log(len(locs)) - float(per_draw.logsumexp(dim=0).mean().item())


def interval_coverage(
    lower: Float[Tensor, "B *outputs"],
    upper: Float[Tensor, "B *outputs"],
    targets: Float[Tensor, "B *outputs"],
) -> float:
    """Fraction of targets inside their closed prediction interval; compare with its level.

        1/n · Σ_i 1[lower_i ≤ y_i ≤ upper_i]

    Gneiting, Balabdaoui & Raftery (2007), "Probabilistic forecasts, calibration and sharpness".

    Args:
        lower: Lower ends; minus infinity for one-sided intervals.
        upper: Upper ends; infinity for one-sided intervals.
        targets: True values.

    Examples:
        >>> interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 1.5]))
        0.5
    """
    lower = checks.numbers("lower", lower, allow_infinite=True)
    upper = checks.numbers("upper", upper, allow_infinite=True)
    targets = checks.numbers("targets", targets)
    checks.same_shape("lower", lower, "targets", targets)
    checks.same_shape("upper", upper, "targets", targets)
    if (lower > upper).any():
        raise ValueError("lower: above upper in some entries; swap the two arguments")
    return int(((lower <= targets) & (targets <= upper)).sum()) / targets.numel()


def crps(
    locs: Float[Tensor, "S B *outputs"],
    scales: Float[Tensor, "..."] | float,
    targets: Float[Tensor, "B *outputs"],
) -> float:
    """Continuous ranked probability score of the mixture, in units of the targets; low is good.

        ∫ (F(x) − 1[x ≥ y])² dx = E|X − y| − ½ E|X − X'|
            = 1/S · Σ_s A(y − μ_s, σ_s²) − 1/(2S²) · Σ_st A(μ_s − μ_t, σ_s² + σ_t²),
        A(μ, σ²) = E|N(μ, σ²)| = 2σ φ(μ/σ) + μ (2Φ(μ/σ) − 1)

    Grimit et al. (2006), "The continuous ranked probability score for circular variables and its
    application to mesoscale forecast ensemble verification". Each element is scored separately,
    and the scores are averaged.

    Args:
        locs: Means of each draw.
        scales: Standard deviations, broadcast to `locs`; 0 scores the draws as an ensemble.
        targets: True values.

    Examples:
        >>> crps(torch.tensor([[0.0], [2.0]]), 0.0, torch.tensor([1.0]))
        0.5
    """
    locs, scales, targets = _mixture(locs, scales, targets)
    error = _mean_absolute(targets - locs, scales).mean(dim=0)
    # One draw is compared with the others at a time, which needs no more memory than locs. Pairs
    # (s, t) are symmetric, so t ≥ s is enough, where the pair (s, s) has half the weight.
    half_spread = torch.zeros_like(error)
    for s in range(len(locs)):
        distance = _mean_absolute(locs[s] - locs[s:], torch.hypot(scales[s], scales[s:]))
        half_spread += distance.sum(dim=0) - distance[0] / 2
    return float((error - half_spread / len(locs) ** 2).mean().item())


def _mean_absolute(loc: Tensor, scale: Tensor) -> Tensor:
    """E|X| of a Normal: A(loc, scale²) in `crps`."""
    # At scale 0 the quotient is huge or infinite with the sign of loc, or 0 if loc is 0. The
    # formula then gives |loc| without a special case.
    z = loc / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return 2 * scale * density + loc * torch.erf(z / math.sqrt(2))


def _mixture(
    locs: Tensor, scales: Tensor | float, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Checks the parameters of the mixture, and returns them detached, scales as large as locs."""
    locs = checks.numbers("locs", locs).detach()
    targets = checks.numbers("targets", targets).detach()
    scales = checks.numbers("scales", torch.as_tensor(scales).to(locs)).detach()
    if locs.shape[1:] != targets.shape or targets.ndim == 0:
        raise ValueError(
            f"locs: expected draws first, shape [S, {', '.join(map(str, targets.shape))}] for the "
            f"given targets, got {list(locs.shape)}; for one draw pass locs.unsqueeze(0)"
        )
    if scales.min() < 0:
        raise ValueError("scales: negative values; pass standard deviations, not their logarithms")
    try:
        return locs, scales.expand_as(locs), targets
    except RuntimeError as mismatch:
        raise ValueError(
            f"scales: shape {list(scales.shape)} does not broadcast to {list(locs.shape)} of locs"
        ) from mismatch
