"""BatchBALD: a batch whose labels together teach most about the weights."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bbh import checks
from bbh.acquisition.choosing import check_number
from bbh.metrics import checks as metric_checks
from bbh.predictive import ClassPredictive

# The most numbers of an intermediate result: 64 MiB in float64.
_AT_ONCE = 2**23


def batch_bald(
    predictive: ClassPredictive, number: int, *, num_configurations: int = 10_000
) -> Int[Tensor, " number"]:
    """Chooses examples one by one, each for what its label adds to those chosen before.

        argmax_x H[y_1, …, y_b, y_x] − Σ_i E_w H[y_i | w] − E_w H[y_x | w]

    Kirsch, van Amersfoort & Gal (2019), "BatchBALD: efficient and diverse batch acquisition for
    deep Bayesian active learning". Two examples that are alike teach little more than one, so a
    batch has few of them. The greedy choice has at least 1 − 1/e of the best batch's information.

    The joint entropy is exact while the labels of the batch have at most ``num_configurations``
    configurations (10,000 are four examples of ten classes); after that it is estimated from as
    many random ones, which is noisy for large batches. Time and memory grow with draws × pool ×
    classes × configurations: for thousands of examples, choose among the best few hundred by
    ``bald``.

    Args:
        predictive: Predictions for the pool, made with ``keep_draws=True``.
        number: How many to choose.
        num_configurations: The most configurations of labels that are looked at.
    """
    checks.whole("num_configurations", num_configurations, 1, "look at least at one")
    draws = _draws_of(predictive)
    check_number(number, draws.shape[1])
    expected = torch.special.entr(draws).sum(2).mean(0)
    joint = Joint.empty(len(draws))
    chosen: list[int] = []
    for _ in range(number):
        gain = joint.entropies_with(draws) - expected
        gain[chosen] = -torch.inf
        chosen.append(int(gain.argmax()))
        joint = joint.extended(draws[:, chosen[-1]], num_configurations)
    return torch.tensor(chosen)


@dataclass(frozen=True)
class Joint:
    """Probabilities of configurations of the labels of all chosen examples, for each draw.

    Attributes:
        given_draw: p(y_1, …, y_b | w_s) for every draw s and configuration m.
        weights: The weight of each configuration in a sum over all of them: 1 if all are there,
            1/(M·p(configuration)) if M are a sample.
        origin: For a sample, the draw that each configuration was sampled from.
    """

    given_draw: Float[Tensor, "S M"]
    weights: Float[Tensor, " M"]
    origin: Int[Tensor, " M"] | None = None

    @staticmethod
    def empty(num_draws: int) -> "Joint":
        """Of no example: one configuration, which is certain."""
        one = torch.ones(num_draws, 1, dtype=torch.float64)
        return Joint(one, one[0])

    def entropies_with(self, draws: Float[Tensor, "S B C"]) -> Float[Tensor, " B"]:
        """Joint entropy of the chosen examples and each one of the pool, in nats."""
        num_draws, _, num_classes = draws.shape
        at_once = max(1, _AT_ONCE // (self.given_draw.shape[1] * num_classes))
        parts = (
            torch.einsum("sm,sbc->bmc", self.given_draw, some) / num_draws
            for some in draws.split(at_once, dim=1)
        )
        return torch.cat([torch.special.entr(part).sum(2) @ self.weights for part in parts])

    def extended(self, probs: Float[Tensor, "S C"], most: int) -> "Joint":
        """The same with one more example."""
        if self.origin is None and self.given_draw.shape[1] * probs.shape[1] <= most:
            joint = (self.given_draw.unsqueeze(2) * probs.unsqueeze(1)).flatten(1)
            return Joint(joint, joint.new_ones(joint.shape[1]))
        known = self if self.origin is not None else self._sampled(most)
        assert known.origin is not None
        labels = torch.multinomial(probs[known.origin], 1).squeeze(1)
        joint = known.given_draw * probs[:, labels]
        return Joint(joint, 1 / (joint.mean(0) * joint.shape[1]), known.origin)

    def _sampled(self, number: int) -> "Joint":
        """A sample of configurations in place of all, from every draw equally many."""
        num_draws = len(self.given_draw)
        each = -(-number // num_draws)
        chosen = torch.multinomial(self.given_draw, each, replacement=True).flatten()
        joint = self.given_draw[:, chosen]
        origin = torch.arange(num_draws).repeat_interleave(each)
        return Joint(joint, 1 / (joint.mean(0) * len(chosen)), origin)


def _draws_of(predictive: ClassPredictive) -> Float[Tensor, "S B C"]:
    checks.instance("predictive", predictive, ClassPredictive, "pass that of bbh.predict")
    if predictive.draws is None:
        raise ValueError(
            "batch_bald needs the probabilities of every draw: bbh.predict(…, keep_draws=True)."
        )
    draws = predictive.draws.detach().cpu()
    return metric_checks.probabilities("draws", draws, num_dims=3).double()
