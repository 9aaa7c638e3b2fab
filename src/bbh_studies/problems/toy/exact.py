"""The exact posterior of the toy network: hidden layer by NUTS, output layer in closed form.

Given the hidden layer's weights v, the outputs are linear in the output layer's weights w:

    y = Φ(v) w + ε,    w ~ N(0, τ²),    ε ~ N(0, σ²),

a row of Φ for every datum, one column for each hidden unit and one of ones. So w can be integrated
out, and the data are Gaussian with covariance C = τ² Φ Φᵀ + σ²:

    U(v) = ½ yᵀ C⁻¹ y + ½ log det C + ½ |v|²/τ²

is the potential of v alone, which NUTS samples. With a hundred hidden units it is close to the
prior's, and chains mix in few steps, while U(v, w) is so stiff on standardised data that every step
needs many gradients. For every v one w is drawn from its Gaussian.

Weights are not identified, since hidden units permute, and their signs and scales trade off.
*Functions* are, so convergence is judged on predictions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from bbh.samples import Params


class HiddenLayer:
    """The posterior of the hidden layer, in double precision, with the output layer integrated out.

    Args:
        inputs: Training inputs on the scale that the layers see.
        targets: Training targets on the scale of the layers' outputs.
        noise_scale: σ, on the same scale.
        prior_scale: τ, of all weights.
        units: Number of hidden units.
    """

    def __init__(
        self,
        inputs: Float[Tensor, "data 1"],
        targets: Float[Tensor, "data 1"],
        noise_scale: float,
        prior_scale: float,
        units: int,
    ):
        self.inputs = inputs.double()
        self.targets = targets.double()
        self.noise_scale = noise_scale
        self.prior_scale = prior_scale
        self.units = units

    def potential(self, weights: Float[Tensor, " dimensions"]) -> Tensor:
        """U(v), where v is all kernels, then all biases."""
        factor = torch.linalg.cholesky(self._covariance(self._features(weights)))
        whitened = torch.linalg.solve_triangular(factor, self.targets, upper=False)
        log_determinant = factor.diagonal().log().sum()
        prior = weights.square().sum() / (2 * self.prior_scale**2)
        return whitened.square().sum() / 2 + log_determinant + prior

    def draw_prior(self) -> Float[Tensor, " dimensions"]:
        """A draw of v from its prior."""
        return self.prior_scale * torch.randn(2 * self.units, dtype=torch.double)

    def with_output_layer(self, weights: Float[Tensor, "draws dimensions"]) -> Params:
        """Draws an output layer for every v: weights of the whole network."""
        features = self._features(weights)
        draws, data, columns = features.shape
        # A draw of prior and noise, corrected by what it misses the targets by: this has the mean
        # and the covariance of the posterior.
        free = self.prior_scale * torch.randn(draws, columns, 1, dtype=torch.double)
        noise = self.noise_scale * torch.randn(draws, data, 1, dtype=torch.double)
        missed = self.targets - features @ free - noise
        solved = torch.linalg.solve(self._covariance(features), missed)
        output = free + self.prior_scale**2 * features.mT @ solved
        kernel, bias = weights.split(self.units, -1)
        return {
            "0.weight": kernel.unsqueeze(-1),
            "0.bias": bias,
            "2.weight": output[:, :-1].mT,
            "2.bias": output[:, -1],
        }

    def _features(self, weights: Tensor) -> Tensor:
        kernel, bias = (one.unsqueeze(-2) for one in weights.split(self.units, -1))
        hidden = torch.relu(self.inputs * kernel + bias)
        return torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)

    def _covariance(self, features: Tensor) -> Tensor:
        noise = self.noise_scale**2 * torch.eye(len(self.inputs), dtype=torch.double)
        return self.prior_scale**2 * features @ features.mT + noise
