"""Adam for gradients that are kept as products of factors."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam

from bbh.distribution import WeightDistribution
from bbh.generators.factored.optimizer import FactoredOptimizer, large_matrices
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
    return FactoredAdam(parameters, large_matrices(weights), moments=moments, **settings)


class FactoredAdam(FactoredOptimizer, Adam):
    """A fused Adam that updates some matrices from factors of their gradient.

    It gives the same numbers as ``torch.optim.Adam(fused=True)`` up to rounding, and has the same
    state, so each can continue from a checkpoint of the other.

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
        if moments not in (torch.float32, torch.bfloat16):
            raise ValueError(f"moments={moments}: choose torch.float32 or torch.bfloat16.")
        super().__init__(parameters, factored, fused=True, **settings)
        self._moments = moments
        if any(group["amsgrad"] or group["maximize"] for group in self.param_groups):
            self.release()
            raise ValueError("FactoredAdam knows neither amsgrad nor maximize.")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient, dense or in factors."""
        batches = None if closure is not None else self._plain_groups()
        if batches is None:
            loss = super().step(closure)
        else:
            loss = None
            for group, parameters in batches:
                self._update(group, parameters)
        for matrix, factors, group in self.factored_gradients():
            beta1, beta2 = group["betas"]
            state = self._state_of(matrix)
            state["step"].add_(1)
            outer_adam_(
                matrix,
                state["exp_avg"],
                state["exp_avg_sq"],
                *factors,
                rate=group["lr"],
                step=state["step"],
                skip=self.found_inf,
                settings=AdamSettings(
                    beta1,
                    beta2,
                    group["eps"],
                    group["weight_decay"],
                    group["decoupled_weight_decay"],
                ),
            )
            if self.found_inf is not None:
                state["step"].sub_(self.found_inf)
        return loss

    def _plain_groups(self) -> list[tuple[dict[str, Any], list[Tensor]]] | None:
        """Groups with their parameters that have a gradient, if ``_update`` can update them all."""
        if self.found_inf is not None or getattr(self, "grad_scale", None) is not None:
            return None
        groups: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            found = [one for one in group["params"] if one.grad is not None]
            unusual = group["amsgrad"] or group["maximize"] or isinstance(group["lr"], Tensor)
            if unusual or not all(map(_plain, found)):
                return None
            groups.append((group, found))
        return groups

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Calls torch's fused update of parameters in single precision on a CPU.

        For a network with a few small tensors, torch's own way to this call takes longer than the
        update: it can do more, of which nothing is asked for here.
        """
        if not parameters:
            return
        states = [self.state[one] for one in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        beta1, beta2 = group["betas"]
        update(
            parameters,
            [cast(Tensor, one.grad) for one in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            amsgrad=False,
            lr=float(group["lr"]),
            beta1=float(beta1),
            beta2=float(beta2),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

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


def _plain(parameter: Tensor) -> bool:
    """Whether it is an ordinary tensor in single precision on a CPU, with such a gradient."""
    gradient = parameter.grad
    return (
        type(parameter) is nn.Parameter
        and type(gradient) is Tensor
        and gradient.layout is torch.strided
        and parameter.dtype is gradient.dtype is torch.float32
        and parameter.device.type == "cpu"
    )
