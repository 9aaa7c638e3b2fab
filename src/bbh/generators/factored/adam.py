"""Adam that knows of gradients kept as factors."""

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
    parameters: Iterable[nn.Parameter],
    *,
    moments: torch.dtype = torch.float32,
    **settings: Any,
) -> "FactoredAdam":
    """Adam for one CPU or CUDA device that saves what the distribution over weights lets it save.

    Args:
        weights: Its large matrices whose gradients come in factors are updated from these. It must
            be on the device where it will train.
        parameters: What to train.
        moments: Of those matrices; see ``FactoredAdam``.
        settings: Of ``torch.optim.Adam``.
    """
    found = weights.factored_parameters()
    large = [matrix for matrix in found if matrix.requires_grad and is_large(matrix)]
    return FactoredAdam(parameters, large, moments=moments, **settings)


class FactoredAdam(Adam):
    """Adam, fused, that updates some matrices from factors of their gradient.

    The same numbers as ``torch.optim.Adam(fused=True)`` up to rounding, and the same state, so
    either goes on with a checkpoint of the other. What it saves is the dense gradient: its memory,
    and writing and reading it.

    Args:
        parameters: Everything to train.
        factored: Those of them that pass through ``outer_linear`` and nowhere else.
        moments: ``torch.bfloat16`` keeps the moments of the factored ones in half the memory, a
            third less of what an update moves. They are rounded up or down at random, right on
            average: rounding to nearest would forget every step below a 256th of the moment.
        settings: Of ``torch.optim.Adam``.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
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
        """Forgets gradients and factors."""
        super().zero_grad(set_to_none)
        for matrix in self._factored:
            clear_factors(matrix)

    def release(self) -> None:
        """Gives the matrices back to ordinary gradients."""
        for matrix in self._factored:
            stop_collecting(matrix)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of everything that has a gradient of either kind."""
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
        # Also of a checkpoint, which torch loads in the parameter's own type.
        for name in ("exp_avg", "exp_avg_sq"):
            if state[name].dtype != self._moments:
                state[name] = state[name].to(self._moments)
        return state
