"""What optimizers have in common that take gradients as products of factors."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from bbh.distribution import WeightDistribution
from bbh.generators.factored.gradients import (
    Factors,
    clear_factors,
    collect_factors,
    factors_of,
    is_large,
    stop_collecting,
)


def large_matrices(weights: WeightDistribution) -> list[nn.Parameter]:
    """The trained matrices whose gradients can be kept in factors, and that are large enough.

    The distribution must already be on the device for training, which decides what is large.
    """
    found = weights.factored_parameters()
    return [matrix for matrix in found if matrix.requires_grad and is_large(matrix)]


class FactoredOptimizer(Optimizer):
    """Base of the optimizers that update some matrices from factors of their gradient.

    The dense gradient of these matrices never exists, which saves its memory and the time to write
    and read it. A class derives from this one and, if it extends an optimizer of torch, from that
    one after it; its ``step`` updates the other parameters as usual, and loops over
    ``factored_gradients``. So that a training step can be recorded as a CUDA graph, ``step`` must
    decide nothing on the host:

    - A learning rate that is a tensor is read on the device.
    - If ``found_inf`` is a tensor that holds one, parameters and state stay unchanged, even if
      gradients are not finite. The name is that of torch's fused optimizers.

    Args:
        parameters: All parameters to train, or groups of them.
        factored: The matrices among them that are used in ``outer_linear`` and nowhere else.
        arguments: Further arguments of the base after this one.
        settings: Further arguments of the base after this one, by name.

    Attributes:
        factored: These matrices.
        found_inf: A tensor on the device, one to skip updates and zero to take them; None takes
            every update.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        factored: Iterable[nn.Parameter],
        *arguments: Any,
        **settings: Any,
    ):
        super().__init__(parameters, *arguments, **settings)
        self.factored = list(factored)
        # An earlier optimizer may not have been released; this one needs the others' gradients.
        for group in self.param_groups:
            for parameter in group["params"]:
                stop_collecting(parameter)
        for matrix in self.factored:
            collect_factors(matrix)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients and factors."""
        if set_to_none:
            # Torch's own function does the same, and prepares for more than it is asked for here.
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        else:
            super().zero_grad(set_to_none)
        for matrix in self.factored:
            clear_factors(matrix)

    def release(self) -> None:
        """Makes backward passes write ordinary gradients of the matrices again."""
        for matrix in self.factored:
            stop_collecting(matrix)

    def factored_gradients(self) -> Iterator[tuple[nn.Parameter, Factors, dict[str, Any]]]:
        """The matrices that have factors of a gradient, each with these and its group's settings.

        There are no factors after a backward pass in mixed precision, which writes dense gradients.
        """
        known = {id(matrix) for matrix in self.factored}
        for group in self.param_groups:
            for matrix in group["params"]:
                factors = factors_of(matrix) if id(matrix) in known else None
                if factors is not None:
                    yield matrix, factors, group
