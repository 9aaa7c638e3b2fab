"""Adam for gradients that are kept as products of factors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from bbh.distribution import WeightDistribution
from bbh.generators.factored.gradients import (
    clear_factors,
    collect_factors,
    factors_of,
    is_large,
    stop_collecting,
)
from bbh.generators.factored.outer_adam import AdamSettings, outer_adam_


def make_adam(
    weights: WeightDistribution,
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    moments: torch.dtype = torch.float32,
    **settings: Any,
) -> "FactoredAdam":
    """Adam for one CPU or CUDA device that avoids dense gradients of large matrices.

    Args:
        weights: The distribution that is trained. Its large matrices whose gradients can be kept in
            factors are updated from the factors. It must already be on the device for training.
        parameters: The parameters to train, or groups of them.
        moments: Type of the moments of these matrices, see ``FactoredAdam``.
        settings: Other settings of ``torch.optim.Adam``.
    """
    found = weights.factored_parameters()
    large = [matrix for matrix in found if matrix.requires_grad and is_large(matrix)]
    return FactoredAdam(parameters, large, moments=moments, **settings)


class FactoredAdam(Adam):
    """A fused Adam that updates some matrices from factors of their gradient.

    It gives the same numbers as ``torch.optim.Adam(fused=True)`` up to rounding, and has the same
    state, so each can continue from a checkpoint of the other. The dense gradient never exists,
    which saves its memory and the time to write and read it.

    Args:
        parameters: All parameters to train, or groups of them.
        factored: The matrices among them that are used in ``outer_linear`` and nowhere else.
        moments: Type of the moments of the factored matrices. ``torch.bfloat16`` halves their
            memory and reduces the memory traffic of an update by a third. Values are rounded up or
            down at random so that they are right on average: rounding to nearest would lose every
            change below a 256th of the moment.
        settings: Other settings of ``torch.optim.Adam``.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        factored: Iterable[nn.Parameter],
        *,
        moments: torch.dtype = torch.float32,
        **settings: Any,
    ):
        super().__init__(parameters, fused=True, **settings)
        if moments not in (torch.float32, torch.bfloat16):
            raise ValueError(f"moments={moments}: choose torch.float32 or torch.bfloat16.")
        self._moments = moments
        if any(group["amsgrad"] or group["maximize"] for group in self.param_groups):
            raise ValueError("FactoredAdam knows neither amsgrad nor maximize.")
        self._factored = list(factored)
        for matrix in self._factored:
            collect_factors(matrix)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients and factors."""
        super().zero_grad(set_to_none)
        for matrix in self._factored:
            clear_factors(matrix)

    def release(self) -> None:
        """Makes backward passes write ordinary gradients of the matrices again."""
        for matrix in self._factored:
            stop_collecting(matrix)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient, dense or in factors."""
        loss = super().step(closure)
        skip: Tensor | None = getattr(self, "found_inf", None)
        known = {id(matrix) for matrix in self._factored}
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            settings = AdamSettings(
                beta1, beta2, group["eps"], group["weight_decay"], group["decoupled_weight_decay"]
            )
            for matrix in group["params"]:
                factors = factors_of(matrix) if id(matrix) in known else None
                if factors is None:
                    continue
                state = self._state_of(matrix)
                state["step"].add_(1)
                outer_adam_(
                    matrix,
                    state["exp_avg"],
                    state["exp_avg_sq"],
                    *factors,
                    rate=group["lr"],
                    step=state["step"],
                    skip=skip,
                    settings=settings,
                )
                if skip is not None:
                    state["step"].sub_(skip)
        return loss

    def _state_of(self, matrix: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[matrix]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=matrix.device)
            state["exp_avg"] = torch.zeros_like(matrix, dtype=self._moments)
            state["exp_avg_sq"] = torch.zeros_like(matrix, dtype=self._moments)
        # A checkpoint needs this too, since torch loads its moments in the parameter's type.
        for name in ("exp_avg", "exp_avg_sq"):
            if state[name].dtype != self._moments:
                state[name] = state[name].to(self._moments)
        return state
