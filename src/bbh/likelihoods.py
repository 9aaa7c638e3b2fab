"""Likelihoods: how targets arise from a network's outputs. All work with all methods.

Log probabilities are given for each weight draw and example, [S, B]. If an example has several
outputs, they are independent given the draw and their log probabilities add up. Weights of classes
or examples multiply the log probability: an example with weight 2 counts like two equal examples.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks, metrics
from bbh.predictive import ClassPredictive, Predictive, RegressionPredictive
from bbh.standardisation import Standardisation, standardisation_of

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Regression",
    "Standardisation",
]

P = TypeVar("P", bound=Predictive)
Sums = dict[str, Tensor]
_SMALLEST_SCALE = 1e-6


class Likelihood(nn.Module, ABC, Generic[P]):
    """The distribution p(targets | outputs).

    Attributes:
        keeps_outputs: Whether the predictive distribution needs the outputs of every draw
            (regression). If not, it is built from sums over draws, which take less memory
            (classification).
        prior_scale: The scale of ``bbh.priors.FanIn`` that suits networks for this likelihood, for
            methods that choose a prior themselves. Standardised targets are of the size of one,
            while classes that are certain need logits of ten and more.
    """

    keeps_outputs: ClassVar[bool] = False
    prior_scale: ClassVar[float] = 2.0

    @abstractmethod
    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log p(target | output), with class weights if there are any."""

    @abstractmethod
    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Statistics summed over the draws, for ``predictive``."""

    @abstractmethod
    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> P:
        """The predictive distribution, from sums over all draws and the outputs if kept."""

    @abstractmethod
    def metrics(self, predictive: P, targets: Tensor) -> dict[str, float]:
        """Metrics of a prediction with known targets; always with ``error`` and ``nll``."""

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float] | None:
        """Metrics of the best prediction that ignores inputs: what any posterior should beat.

        Args:
            training: The targets that the prediction is fitted to.
            targets: The targets it is judged by, for as many examples as you like.

        Returns:
            The same metrics as ``metrics``; None if the likelihood has no such prediction.
        """
        del training, targets


@dataclass(eq=False)
class Categorical(Likelihood[ClassPredictive]):
    """Classification: the last axis of the outputs holds logits, targets are integers.

    Args:
        class_weights: One weight per class, for example larger ones for rare classes; a sequence,
            tensor or array of numbers.
    """

    class_weights: Sequence[float] | Tensor | NDArray[Any] | None = None
    weight_of_class: Tensor = field(init=False, repr=False)

    prior_scale: ClassVar[float] = 5.0

    def __post_init__(self):
        super().__init__()
        if self.class_weights is not None:
            self.class_weights = _weights_of_classes(self.class_weights)
        weights = torch.tensor(self.class_weights or ())
        self.register_buffer("weight_of_class", weights, persistent=False)

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log softmax(outputs)[target], summed over positions if there are several per example."""
        self._check(outputs, targets)
        log_probs = F.log_softmax(outputs, dim=-1)
        index = targets.long().expand(outputs.shape[:-1]).unsqueeze(-1)
        chosen = log_probs.gather(-1, index).squeeze(-1)
        if self.class_weights is not None:
            chosen = chosen * self.weight_of_class.to(chosen)[targets.long()]
        return _sum_event(chosen)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the probabilities and of their entropies over the draws."""
        probs = outputs.softmax(-1)
        return {"probs": probs.sum(0), "entropy": _entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> ClassPredictive:
        """The averaged probabilities and their uncertainties."""
        mean = sums["probs"] / num_samples
        confidence, labels = mean.max(-1)
        return ClassPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=_entropy(mean),
            expected_entropy=sums["entropy"] / num_samples,
            confidence=confidence,
            labels=labels,
            draws=None if outputs is None else outputs.softmax(-1),
        )

    def metrics(self, predictive: ClassPredictive, targets: Tensor) -> dict[str, float]:
        """Error (per cent), NLL, Brier score and calibration error."""
        return _class_metrics(predictive.mean.flatten(0, -2), targets.flatten())

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the frequencies of the classes, times their weights if they have any.

        Each class is counted once more than it occurs, so that none is impossible.
        """
        known, judged = training.flatten().long(), targets.flatten().long()
        num_classes = max(int(known.max()) + 1, int(judged.max()) + 1, len(self.weight_of_class))
        counts = known.bincount(minlength=num_classes) + 1.0
        if self.class_weights is not None:
            counts = counts * self.weight_of_class.to(counts)
        return _class_metrics((counts / counts.sum()).expand(len(judged), -1), judged)

    def _check(self, outputs: Tensor, targets: Tensor) -> None:
        num_classes = outputs.shape[-1]
        if targets.is_floating_point() or targets.shape != outputs.shape[1:-1]:
            raise ValueError(
                f"Categorical needs integer targets of shape {tuple(outputs.shape[1:-1])} for "
                f"outputs [S, B, …, classes] = {tuple(outputs.shape)}; got {targets.dtype} "
                f"{tuple(targets.shape)}. One-hot targets go in as targets.argmax(-1), a column "
                "[B, 1] as targets.squeeze(-1). Classes are on the last axis of the outputs: move "
                "them there with the forward= argument if yours are elsewhere."
            )
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise ValueError(
                f"class_weights has {len(self.class_weights)} entries; the network has "
                f"{num_classes} classes."
            )
        # On a GPU, checking values would make the host wait; there an invalid target makes the
        # look-up itself fail.
        readable = targets.device.type == "cpu" and targets.numel() > 0
        if readable and not 0 <= targets.min() <= targets.max() < num_classes:
            raise ValueError(
                f"targets run from {int(targets.min())} to {int(targets.max())}; with "
                f"{num_classes} outputs they must lie in 0 … {num_classes - 1}."
            )


@dataclass(eq=False)
class Bernoulli(Likelihood[ClassPredictive]):
    """Yes/no outputs: one logit for each, and targets 0 or 1 of the same shape.

    Args:
        positive_weight: Weight of an output whose target is 1.
    """

    positive_weight: float = 1.0

    prior_scale: ClassVar[float] = 5.0

    def __post_init__(self):
        super().__init__()
        checks.number("positive_weight", self.positive_weight)

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """Σ over outputs of target·log σ(o) + (1 − target)·log σ(−o)."""
        _check_same_shape(outputs, targets)
        # Checked on a CPU only, since on a GPU the host would have to wait for the values.
        if targets.device.type == "cpu" and targets.numel() > 0:
            low, high = float(targets.min()), float(targets.max())
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"Bernoulli needs targets in 0 … 1; they run from {low:g} to {high:g}. For "
                    "several classes use Categorical()."
                )
        targets = targets.to(outputs.dtype)
        positive = self.positive_weight * targets * F.logsigmoid(outputs)
        return _sum_event(positive + (1 - targets) * F.logsigmoid(-outputs))

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the probabilities and of their binary entropies over the draws."""
        probs = outputs.sigmoid()
        return {"probs": probs.sum(0), "entropy": _binary_entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> ClassPredictive:
        """The averaged probability of yes for every output, and its uncertainties."""
        mean = sums["probs"] / num_samples
        return ClassPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=_binary_entropy(mean),
            expected_entropy=sums["entropy"] / num_samples,
            confidence=torch.maximum(mean, 1 - mean),
            labels=(mean > 0.5).long(),
            draws=None if outputs is None else outputs.sigmoid(),
        )

    def metrics(self, predictive: ClassPredictive, targets: Tensor) -> dict[str, float]:
        """The metrics of ``Categorical`` for two classes, with every output as one example."""
        return _yes_no_metrics(predictive.mean, targets)

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the share of yes in every output, with the weight of yes.

        Yes and no are counted once more than they occur, so that neither is impossible.
        """
        known = training.to(torch.get_default_dtype())
        yes = self.positive_weight * (known.sum(0) + 1)
        no = (1 - known).sum(0) + 1
        return _yes_no_metrics((yes / (yes + no)).expand_as(targets), targets)


class Regression(Likelihood[RegressionPredictive]):
    """Real-valued targets, which may be standardised: targets = loc + scale · (network's scale).

    The network learns targets of mean 0 and standard deviation 1, which is what initialisations and
    priors are made for. Predictions, intervals, log densities and metrics are in the units of the
    targets that the user passes. ``bbh.fit`` learns loc and scale from the training loader before
    the first step, once: training on later keeps them, and so do saved posteriors and checkpoints.
    In a training loop of your own, call ``posterior.likelihood.fit_targets(targets)`` first. Until
    loc and scale are known, nothing is standardised.

    Attributes:
        standardise: Whether ``fit`` learns loc and scale, or the ones to use.
        target_loc: The targets' loc, one number or one per output; empty until it is known.
        target_scale: Their scale, in the same form.
    """

    keeps_outputs = True
    standardise: bool | Standardisation | None
    target_loc: Tensor
    target_scale: Tensor

    @abstractmethod
    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the observation on the network's scale, of equal shape."""

    @property
    @abstractmethod
    def initial_noise(self) -> float:
        """Standard deviation of the noise, on the network's scale, where outputs are 0."""

    def fit_targets(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Learns loc and scale from all training targets; earlier ones are replaced.

        Args:
            targets: All training targets. Targets [B] have one loc and scale, and targets
                [B, …, k] have k of each.
            weights: A weight for every example.
        """
        self.set_targets(standardisation_of([(targets, weights)]))

    def set_targets(self, known: Standardisation) -> None:
        """Takes loc and scale from now on."""
        self.target_loc = self.target_loc.new_tensor(known.loc)
        self.target_scale = self.target_scale.new_tensor(known.scale)

    @property
    def waits_for_targets(self) -> bool:
        """Whether loc and scale are to be learned and are not known yet."""
        return self.standardise is True and not self.target_loc.numel()

    def standardised(self, targets: Tensor) -> Tensor:
        """The targets on the network's scale; unchanged if nothing is standardised."""
        if not self.target_loc.numel():
            return targets
        loc, scale = self._known(targets)
        return (targets - loc) / scale

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the observation in the targets' units."""
        loc, scale = self.standard(outputs)
        if not self.target_loc.numel():
            return loc, scale
        target_loc, target_scale = self._known(loc)
        return target_loc + target_scale * loc, target_scale * scale

    def log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B"]:
        """log N(target; loc, scale²) in the targets' units, summed over outputs."""
        loc, scale = self.standard(outputs)
        _check_same_shape(loc, targets)
        residual = (self.standardised(targets) - loc) / scale
        log_prob = -0.5 * residual.square() - scale.log() - 0.5 * math.log(2 * math.pi)
        if self.target_loc.numel():
            # The density of targets is that of standardised ones, divided by the scale.
            log_prob = log_prob - self._known(targets)[1].log()
        return _sum_event(log_prob)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """No sums, since the outputs of all draws are kept."""
        return {}

    def predictive(
        self, sums: Sums, num_samples: int, outputs: Tensor | None
    ) -> RegressionPredictive:
        """The mixture of the Gaussians of all draws, in the targets' units."""
        if outputs is None:
            raise TypeError("a regression predictive is built from every draw's outputs.")
        locs, scales = self.split(outputs)
        return RegressionPredictive(locs.mean(0), num_samples, locs, scales)

    def metrics(self, predictive: RegressionPredictive, targets: Tensor) -> dict[str, float]:
        """Error (RMSE), NLL of the mixture, coverage of the 95 % interval, CRPS."""
        lower, upper = predictive.interval(0.95)
        locs, scales = predictive.locs, predictive.scales
        return {
            "error": metrics.rmse(predictive.mean, targets),
            "nll": metrics.gaussian_mixture_nll(locs, scales, targets),
            "coverage_95": metrics.interval_coverage(lower, upper, targets),
            "crps": metrics.crps(locs, scales, targets),
        }

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of a Gaussian with the mean and standard deviation of every output."""
        known = training.to(torch.promote_types(training.dtype, torch.float32))
        loc = known.mean(0).expand(targets.shape)
        # Targets that are all equal have no spread, but a density needs some.
        scale = known.std(0, correction=0).clamp(min=_SMALLEST_SCALE).expand(targets.shape)
        return self.metrics(RegressionPredictive(loc, 1, loc[None], scale[None]), targets)

    def _register_targets(self) -> None:
        # Empty tensors stand for unknown ones: they move between devices with the module.
        self.register_buffer("target_loc", torch.empty(0))
        self.register_buffer("target_scale", torch.empty(0))
        if isinstance(self.standardise, Standardisation):
            self.set_targets(self.standardise)

    def _known(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """loc and scale of the targets, on the device of ``values``."""
        outputs = self.target_loc.shape[-1] if self.target_loc.dim() else None
        if outputs is not None and outputs != values.shape[-1]:
            raise ValueError(
                f"the likelihood knows loc and scale of {outputs} outputs; there are "
                f"{values.shape[-1]} on the last axis of {list(values.shape)}."
            )
        return self.target_loc.to(values.device), self.target_scale.to(values.device)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **more: Any
    ) -> None:
        # How many outputs there are is known only after training. Files of 0.1 have neither tensor.
        for name in ("target_loc", "target_scale"):
            own = self.get_buffer(name)
            saved = state_dict.setdefault(prefix + name, own.new_empty(0))
            setattr(self, name, own.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **more)

    def _targets_repr(self) -> str:
        if self.target_loc.numel():
            return f"targets={_rounded(self.target_loc)} ± {_rounded(self.target_scale)}"
        return f"standardise={self.standardise}"


@dataclass(eq=False, repr=False)
class Gaussian(Regression):
    """targets ~ N(outputs, noise²), with the same noise for all examples.

    Whoever knows the noise describes the model in the units of the targets, and nothing is changed
    about it. Whoever does not leaves it all to the data: ``Gaussian()`` works with targets in any
    units, ``Gaussian(0.1)`` expects targets of a size that the network and its prior can reach.

    Args:
        scale: Standard deviation of the observation noise, in the units of the targets. None if it
            is not known: it is then learned, starting at the targets' own spread, and of several
            outputs each has a noise in proportion to its spread.
        learned: Whether ``scale`` is only the initial value and is learned with the weights. None
            learns it if no scale is given.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use. None does so if no noise scale is given.
    """

    scale: float | None = None
    learned: bool | None = None
    standardise: bool | Standardisation | None = None
    log_scale: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        super().__init__()
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"Gaussian(scale={self.scale}): the scale must be positive.")
        if self.learned is None:
            self.learned = self.scale is None
        if self.standardise is None:
            self.standardise = self.scale is None
        if self.scale is None and not self.learned:
            raise ValueError(
                "Gaussian(learned=False) needs the noise's scale, in the units of the targets."
            )
        log_scale = torch.tensor(math.log(self.scale or 1.0))
        if self.learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs as means, and the common noise."""
        noise = self.log_scale.exp().to(outputs.device)
        if self.scale is not None and self.target_loc.numel():
            noise = noise / self._known(outputs)[1]  # it is in the units of the targets
        return outputs, noise.expand_as(outputs)

    @property
    def initial_noise(self) -> float:
        """The present noise, on the network's scale; the mean over outputs."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        return float(self.standard(loc)[1].detach().mean())

    def extra_repr(self) -> str:
        """The present noise in the units of the targets, and their loc and scale."""
        loc = torch.zeros_like(self.target_loc if self.target_loc.numel() else self.log_scale)
        noise = self.split(loc)[1]
        return f"scale={_rounded(noise)}, learned={self.learned}, {self._targets_repr()}"


@dataclass(eq=False, repr=False)
class HeteroscedasticGaussian(Regression):
    """targets ~ N(loc, scale²), where the network predicts both loc and scale.

    The last axis of the outputs holds the locs and then the raw scales, with
    scale = min_scale + softplus(raw). A network for k targets thus has 2k outputs. Both are on the
    network's scale: multiplied by the targets' spread where targets are standardised.

    Args:
        min_scale: Smallest scale. It keeps the likelihood bounded where the network fits targets
            exactly.
        standardise: Whether ``fit`` learns the targets' loc and scale (see ``Regression``), or a
            ``Standardisation`` to use.
    """

    min_scale: float = 1e-3
    standardise: bool | Standardisation | None = True

    def __post_init__(self):
        super().__init__()
        if not self.min_scale > 0:
            raise ValueError(f"min_scale must be positive, got {self.min_scale}.")
        self._register_targets()

    def standard(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Means from the first half of the outputs, scales from the second half."""
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian needs an even number of outputs, means then raw scales; "
                f"the network has {outputs.shape[-1]}."
            )
        loc, raw = outputs.chunk(2, dim=-1)
        return loc, self.min_scale + F.softplus(raw)

    @property
    def initial_noise(self) -> float:
        """min_scale + softplus(0)."""
        return self.min_scale + math.log(2)

    def extra_repr(self) -> str:
        """The smallest scale, and the targets' loc and scale."""
        return f"min_scale={self.min_scale}, {self._targets_repr()}"


def _weights_of_classes(given: Any) -> tuple[float, ...]:
    """One finite, non-negative number per class from a sequence, tensor or array."""
    try:
        weights = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"class_weights={checks.shown(given)}: give numbers.") from error
    if weights.dim() != 1 or not weights.isfinite().all() or weights.min() < 0:
        raise ValueError(
            f"class_weights={checks.shown(given)}: give one finite weight per class, none of them "
            "negative."
        )
    return tuple(weights.tolist())


def _class_metrics(probs: Tensor, targets: Tensor) -> dict[str, float]:
    targets = targets.long()
    return {
        "error": metrics.error(probs, targets),
        "nll": metrics.nll(probs, targets),
        "brier": metrics.brier(probs, targets),
        "ece": metrics.expected_calibration_error(probs, targets),
    }


def _yes_no_metrics(yes: Tensor, targets: Tensor) -> dict[str, float]:
    yes = yes.flatten()
    return _class_metrics(torch.stack([1 - yes, yes], dim=1), targets.flatten())


def _entropy(probs: Tensor) -> Tensor:
    # Like metrics.entropy without its checks, which the result of a softmax does not need.
    return torch.special.entr(probs).sum(-1)


def _binary_entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs) + torch.special.entr(1 - probs)


def _rounded(values: Tensor) -> str:
    """Few digits of every number, in brackets if there are several."""
    numbers = [f"{number:.4g}" for number in values.detach().flatten().tolist()]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


def _sum_event(values: Tensor) -> Tensor:
    return values.flatten(2).sum(2) if values.dim() > 2 else values


def _check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    if targets.shape != outputs.shape[1:]:
        remedy = (
            "They must be equal: broadcasting [B] against [B, 1] would compare every target with "
            "every output. Reshape the targets."
            if targets.numel() == outputs[0].numel()
            else "They must be equal: one target for every output. For class labels use "
            "Categorical()."
        )
        raise ValueError(
            f"targets have shape {tuple(targets.shape)}, the network's outputs for them "
            f"{tuple(outputs.shape[1:])}. {remedy}"
        )
