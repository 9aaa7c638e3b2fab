"""Estimates KL(q‖p) with a critic that tells weights of q from weights of the prior p.

The logit of the best critic is log q/p.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bbh import checks
from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence
from bbh.samples import Shapes, size


class Critic(nn.Module):
    """T(w): the logit that a single weight value came from q.

    With an embedding the critic also knows which tensor the weight belongs to.
    """

    def __init__(self, shapes: Shapes, hidden: tuple[int, ...], embedding: int):
        super().__init__()
        lengths = torch.tensor([size({name: shape}) for name, shape in shapes.items()])
        tensor_of_weight = torch.arange(len(shapes)).repeat_interleave(lengths)
        self.register_buffer("tensor_of_weight", tensor_of_weight, persistent=False)
        self.embedding = nn.Embedding(len(shapes), embedding) if embedding else None
        layers: list[nn.Module] = []
        for inputs, outputs in zip((1 + embedding, *hidden), hidden, strict=False):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    tensor_of_weight: Tensor

    def forward(self, values: Tensor, index: Tensor) -> Tensor:
        """Logits [n, k] for values [n, k] of the weights whose positions are ``index`` [k]."""
        features = values.unsqueeze(-1)
        if self.embedding is not None:
            known = self.embedding(self.tensor_of_weight[index])
            features = torch.cat([features, known.expand(len(values), -1, -1)], dim=-1)
        return self.layers(features).squeeze(-1)


@dataclass(frozen=True)
class Adversarial(Divergence):
    """KL(q‖p) ≈ Σ_w mean_i T(w_i), Mescheder, Nowozin & Geiger (2017), prior-contrastive form.

    The critic T sees one scalar weight. Unconditioned, as in the paper, it learns the ratio of
    the *mixture over all weights* to the prior instead of one ratio for each weight. This is a
    known weakness, kept for comparison. Conditioned on the tensor, it learns one ratio per tensor.

    Args:
        hidden: Widths of the critic's ReLU layers.
        steps: Critic steps per training step (the paper says 5, its code does 1).
        pretraining: Critic steps before training.
        embedding: Size of a learned code of the weight's tensor; 0 leaves the critic unconditioned.
        max_weights: The largest number of weights per step. If there are more, that many are chosen
            at random and the estimate is scaled up. None uses all.
    """

    hidden: tuple[int, ...] = (64, 64)
    steps: int = 5
    pretraining: int = 100
    embedding: int = 0
    max_weights: int | None = 100_000

    def __post_init__(self):
        checks.widths("hidden", self.hidden)
        for name, least in (("steps", 1), ("pretraining", 0), ("embedding", 0)):
            checks.whole(name, getattr(self, name), least, f"give {least} or more")
        if self.max_weights is not None:
            checks.whole("max_weights", self.max_weights, 1, "use at least one, or None for all")

    def helper(self, shapes: Shapes) -> Critic:
        """Builds the critic."""
        return Critic(shapes, self.hidden, self.embedding)

    def auxiliary_steps(self) -> int:
        """All critic steps but one: the training step itself also trains the critic once."""
        return max(0, self.steps - 1)

    def pretraining_steps(self) -> int:
        """The number of critic steps before training."""
        return self.pretraining

    def estimate(self, comparison: Comparison) -> Cost:
        """The critic's estimate, and the critic's own loss as the auxiliary term."""
        critic = comparison.helper
        if not isinstance(critic, Critic):
            raise TypeError("Adversarial needs the critic that its helper() builds.")
        generated = comparison.flat()
        num_samples, num_weights = generated.shape
        reference = comparison.prior_flat(num_samples)
        index = torch.arange(num_weights, device=generated.device)
        if self.max_weights is not None and num_weights > self.max_weights:
            index = torch.randint(num_weights, (self.max_weights,), device=generated.device)
            generated, reference = generated[:, index], reference[:, index]
        # The estimate must not train the critic, which would only learn to make it small.
        fixed = {name: value.detach() for name, value in critic.named_parameters()}
        logits: Tensor = functional_call(critic, fixed, (generated, index))
        complexity = logits.mean(0).sum() * (num_weights / len(index))
        # Binary cross-entropy in logit space: q is labelled one, the prior zero.
        auxiliary = (
            F.softplus(-critic(generated.detach(), index)).mean()
            + F.softplus(critic(reference, index)).mean()
        )
        return Cost(complexity, auxiliary)
