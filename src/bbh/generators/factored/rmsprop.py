"""TensorFlow's RMSProp for gradients that are kept as products of factors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bbh import checks
from bbh.distribution import WeightDistribution
from bbh.generators.factored.optimizer import FactoredOptimizer, large_matrices
from bbh.generators.factored.outer_rmsprop import RMSpropSettings, outer_rmsprop_, rmsprop_


def make_tensorflow_rmsprop(
    weights: WeightDistribution,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    **settings: float,
) -> "TensorFlowRMSprop":
    """TensorFlow's RMSProp, without dense gradients of large matrices.

    Args:
        weights: The distribution that is trained. Its large matrices whose gradients can be kept in
            factors are updated from the factors. It must already be on the device for training.
        parameters: The parameters to train, or groups of them.
        settings: Settings of ``TensorFlowRMSprop``.
    """
    return TensorFlowRMSprop(parameters, large_matrices(weights), **settings)


class TensorFlowRMSprop(FactoredOptimizer):
    """RMSProp as in TensorFlow 1, by which the authors' code trains Bayes by Hypernet.

        v ← decay · v + (1 − decay) · g²,  w ← w − lr · g / √(v + ε),  v₀ = 1

    PyTorch starts v at zero and adds ε after the root. With v starting at one, the first steps
    (about 1/(1 − decay) of them) are smaller by a factor that depends on the gradient's size.

    Args:
        parameters: All parameters to train, or groups of them.
        factored: The matrices among them that are used in ``outer_linear`` and nowhere else.
        lr: Step size.
        decay: Factor on the running mean square v in every step, between 0 and 1.
        eps: ε.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        factored: Iterable[nn.Parameter] = (),
        *,
        lr: float = 1e-4,
        decay: float = 0.9,
        eps: float = 1e-5,
    ):
        checks.number("decay", decay, positive=True)
        if decay >= 1:
            raise ValueError(f"decay={decay}: give a number below 1.")
        super().__init__(parameters, factored, {"lr": lr, "decay": decay, "eps": eps})

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Updates all parameters that have a gradient, dense or in factors."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            dense = [one for one in group["params"] if one.grad is not None]
            if dense:
                squares = [self._square_of(one) for one in dense]
                rmsprop_(dense, squares, [one.grad for one in dense], self._settings(group))
        for matrix, factors, group in self.factored_gradients():
            outer_rmsprop_(matrix, self._square_of(matrix), *factors, self._settings(group))
        return loss

    def _settings(self, group: dict[str, Any]) -> RMSpropSettings:
        return RMSpropSettings(group["lr"], group["decay"], group["eps"], self.found_inf)

    def _square_of(self, parameter: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["square"] = torch.ones_like(parameter)
        return state["square"]
