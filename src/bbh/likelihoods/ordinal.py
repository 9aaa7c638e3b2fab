"""The likelihood of ordered levels, such as ratings or grades."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bbh import checks, metrics
from bbh.likelihoods.base import Likelihood, Parts, Sums, check_same_shape, readable
from bbh.likelihoods.classification import check_ignore_index, class_metrics, entropy
from bbh.likelihoods.regression import rounded
from bbh.memory import by_rows
from bbh.predictive import OrdinalPredictive
from bbh.standardisation import columns

# Thresholds start at least this far apart, where a level hardly occurs in the training data.
_SMALLEST_GAP = 0.05


@dataclass(eq=False, repr=False)
class Ordinal(Likelihood[OrdinalPredictive]):
    """Ordered levels 0 < 1 < … < K − 1, with the cumulative logits of McCullagh (1980).

    The network has one output per target: how high the level tends to be. Thresholds cut this scale
    into levels,

        P(target ≤ k) = σ(threshold_k − output),

    and are learned with the weights. ``bbh.fit`` starts them at the levels' frequencies in the
    training data; in a training loop of your own, call
    ``posterior.likelihood.fit_targets(targets)`` first. Unlike ``Categorical`` it knows that 3 lies
    between 2 and 4, and unlike a regression it does not assume that steps are equally large.

    Args:
        num_levels: K, at least 3. For two levels use ``Bernoulli``.
        ignore_index: A target that stands for "not known", such as -100: it is left out of
            training, metrics and comparisons. None if every target is a level.
    """

    num_levels: int
    ignore_index: int | None = None
    first_threshold: Tensor = field(init=False, repr=False)
    log_gaps: Tensor = field(init=False, repr=False)
    has_seen_targets: Tensor = field(init=False, repr=False)

    prior_scale: ClassVar[float] = 5.0

    def __post_init__(self):
        super().__init__()
        checks.whole("num_levels", self.num_levels, 3, "give three levels or more")
        check_ignore_index(self.ignore_index)
        if self.ignore_index is not None and 0 <= self.ignore_index < self.num_levels:
            raise ValueError(f"ignore_index={self.ignore_index} is one of the levels.")
        self.first_threshold = nn.Parameter(torch.zeros(()))
        self.log_gaps = nn.Parameter(torch.zeros(self.num_levels - 2))
        self._start_at(torch.ones(self.num_levels))
        self.register_buffer("has_seen_targets", torch.tensor(False))

    @property
    def thresholds(self) -> Float[Tensor, " K_minus_1"]:
        """The present thresholds, in rising order."""
        above = self.first_threshold + self.log_gaps.exp().cumsum(0)
        return torch.cat([self.first_threshold.unsqueeze(0), above])

    @property
    def waits_for_targets(self) -> bool:
        """Whether the thresholds are still where they were before any data."""
        return not bool(self.has_seen_targets)

    def summary_of(self, parts: Parts) -> tuple[float, ...]:
        """How often each level occurs; each is counted once more."""
        counts = torch.ones(self.num_levels, dtype=torch.float64)
        for targets, weights in parts:
            observed = self.observed(targets)
            known = targets if observed is None else targets.masked_fill(~observed, 0)
            self._check_levels(known.cpu())
            levels, shares = columns(known, weights)
            if observed is not None:
                shares = shares * columns(observed, None)[0]
            counts += levels.flatten().long().bincount(shares.flatten(), self.num_levels)
        return tuple(counts.tolist())

    def set_targets(self, known: tuple[float, ...]) -> None:
        """Puts the thresholds where outputs of 0 give these frequencies of levels."""
        self._start_at(torch.tensor(known))
        self.has_seen_targets.fill_(True)

    def level_log_probs(self, outputs: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch K"]:
        """Log probabilities of all levels."""
        thresholds = self.thresholds.to(outputs.device)
        above = thresholds - outputs.unsqueeze(-1)  # of the lower level's upper threshold
        nothing = torch.zeros_like(outputs).unsqueeze(-1)
        # σ(b) − σ(a) = σ(b) σ(−a) (1 − exp(a − b)), which does not cancel far from the thresholds.
        not_higher = torch.cat([F.logsigmoid(above), nothing], -1)
        not_lower = torch.cat([nothing, F.logsigmoid(-above)], -1)
        between = torch.log(-torch.expm1(-self.log_gaps.exp())).to(outputs.device)
        return not_higher + not_lower + F.pad(between, (1, 1))

    def elementwise_log_prob(
        self, outputs: Float[Tensor, "S B *event"], targets: Tensor
    ) -> Float[Tensor, "S B *positions"]:
        """Log probability of every target's level."""
        check_same_shape(outputs, targets)
        self._check_levels(targets)
        index = targets.long().expand(outputs.shape).unsqueeze(-1)
        return self.level_log_probs(outputs).gather(-1, index).squeeze(-1)

    def sums(self, outputs: Float[Tensor, "S B *event"]) -> Sums:
        """Sums of the levels' probabilities and of their entropies over the draws."""
        probs = self.level_log_probs(outputs).exp()
        return {"probs": probs.sum(0), "entropy": entropy(probs).sum(0)}

    def predictive(self, sums: Sums, num_samples: int, outputs: Tensor | None) -> OrdinalPredictive:
        """The averaged probabilities of all levels, and their uncertainties."""
        mean = sums["probs"].div_(num_samples)
        confidence, labels = mean.max(-1)
        return OrdinalPredictive(
            mean=mean,
            num_samples=num_samples,
            entropy=by_rows(entropy, mean),
            expected_entropy=sums["entropy"].div_(num_samples),
            confidence=confidence,
            labels=labels,
            draws=None if outputs is None else self.level_log_probs(outputs).exp(),
        )

    def metrics(
        self, predictive: OrdinalPredictive, targets: Tensor, weights: Tensor | None = None
    ) -> dict[str, float]:
        """The metrics of ``Categorical``, and ``rps``, the ranked probability score."""
        return self._metrics(predictive.mean, targets, self.observed(targets, weights))

    def constant(self, training: Tensor, targets: Tensor) -> dict[str, float]:
        """Metrics of the frequencies of the levels; each is counted once more than it occurs."""
        counts = torch.tensor(self.summary_of([(training, None)]))
        shares = (counts / counts.sum()).expand(*targets.shape, -1)
        return self._metrics(shares, targets, self.observed(targets))

    def extra_repr(self) -> str:
        """The number of levels, and the present thresholds."""
        return f"num_levels={self.num_levels}, thresholds={rounded(self.thresholds)}"

    def _metrics(self, probs: Tensor, targets: Tensor, observed: Tensor | None) -> dict[str, float]:
        found = class_metrics(probs, targets, observed)
        if observed is not None:
            probs, targets = probs[observed], targets[observed]
        score = metrics.ranked_probability_score(probs.flatten(0, -2), targets.flatten().long())
        return found | {"rps": score}

    def _marked_as_known(self, targets: Tensor) -> Tensor | None:
        return None if self.ignore_index is None else targets != self.ignore_index

    def _start_at(self, counts: Tensor) -> None:
        reached = (counts.double().cumsum(0) / counts.double().sum())[:-1]
        thresholds = reached.logit()
        gaps = thresholds.diff().clamp(min=_SMALLEST_GAP)
        with torch.no_grad():
            self.first_threshold.fill_(float(thresholds[0]))
            self.log_gaps.copy_(gaps.log())

    def _check_levels(self, targets: Tensor) -> None:
        if targets.is_floating_point():
            raise ValueError(
                f"Ordinal needs whole levels 0 … {self.num_levels - 1}; targets are "
                f"{targets.dtype}: pass targets.long()."
            )
        if readable(targets) and not 0 <= targets.min() <= targets.max() < self.num_levels:
            raise ValueError(
                f"targets run from {int(targets.min())} to {int(targets.max())}; with num_levels="
                f"{self.num_levels} they must lie in 0 … {self.num_levels - 1}: number the lowest "
                "level 0. If one of them marks targets that are not known, pass it as ignore_index."
            )
