"""KL of all weights as one vector, with the entropy of a linearised generator."""

import math
from dataclasses import dataclass

import torch

from bbh.distribution import Cost
from bbh.divergences.base import Comparison, Divergence


@dataclass(frozen=True)
class JointEntropy(Divergence):
    """KL(q‖p) = E_q[−log p(w)] − H(q) of the whole weight vector, correlations included.

    The draws are w = G(z) + σε, where ε is Gaussian noise on every weight. Near z the generator is
    linear, w ≈ G(z) + J(z′ − z) + σε with J = ∂G/∂z, a Gaussian with the covariance JJᵀ + σ²I. This
    gives the entropy

        H ≈ E_z ½ log det(I + JᵀJ/σ²) + D log σ + D/2 log 2πe,

    with a determinant only as large as the noise. If tensors have noise vectors of their own, the
    determinant is a product over these. The entropy is exact if G is linear. For any other G it is
    right where σ is small compared with the distance over which G bends, and if no two distant z
    give the same weights. Otherwise these weights count twice, and the KL comes out too small.

    The prior term is averaged over the draws with the prior's density. One draw is enough.

    Args:
        sigma: σ, the standard deviation of the noise that is added to every generated weight, in
            training and in prediction. The default is the one that ``bayes_by_backprop`` starts
            with: small enough to leave the outputs of common layers almost unchanged. The noise of
            a unit's input grows with √(number of inputs), so wide networks may need less. A
            smaller σ costs −log σ more nats for every direction in which the weights do not move
            with z. As long as σ is fixed this is a constant, which no training can change.
    """

    sigma: float = 0.01
    needs_prior_density = True
    needs_gram = True

    def __post_init__(self):
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise ValueError(f"JointEntropy(sigma={self.sigma}): sigma must be positive.")

    def added_noise(self) -> float:
        """σ."""
        return self.sigma

    def estimate(self, comparison: Comparison) -> Cost:
        """Prior term of the draws minus the linearised entropy at their noise."""
        gram = comparison.gram
        if gram is None:
            raise TypeError("JointEntropy needs JᵀJ of the generator that made the draws.")
        generated = comparison.flat()
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        # Not a Cholesky factor, which fails where rounding makes the matrix indefinite, and whose
        # check for that makes the host wait for the device.
        log_det = torch.linalg.slogdet(identity + gram / self.sigma**2).logabsdet
        per_weight = math.log(self.sigma) + 0.5 * math.log(2 * math.pi * math.e)
        entropy = 0.5 * log_det.sum(1).mean() + generated.shape[1] * per_weight
        log_prior = comparison.prior.flat_log_density(generated, comparison.shapes)
        return Cost(-log_prior.mean() - entropy)
