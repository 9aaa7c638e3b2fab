"""Training with the trained parameters, their gradients and the optimizer's state in shards.

Each process keeps one shard of every parameter of the weight distribution (``fully_shard`` of
PyTorch, through a strategy of Lightning Fabric). For a training step all processes put the
parameters together, draw weights and run the network as they always do; the gradients are averaged
and dealt out, and every process updates its shard.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import partial
from math import inf, isfinite
from typing import Any, cast

from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import Precision
from lightning_fabric.strategies.fsdp import FSDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from lightning_fabric.strategies.strategy import Strategy
from torch import Tensor, nn

from bbh import checks
from bbh.posterior import Posterior
from bbh.processes import averaged, gathered, share


def sharded_strategy(processes: int) -> ModelParallelStrategy:
    """A strategy for Fabric by which ``fit`` keeps what it trains in shards over all processes.

    >>> import bbh
    >>> strategy = bbh.sharded_strategy(processes=4)
    >>> fabric = Fabric(accelerator="cpu", devices=4, strategy=strategy)

    Args:
        processes: The number of processes: devices of a machine times machines.
    """
    checks.whole("processes", processes, 1, "give the number of devices on all machines")
    return ModelParallelStrategy(
        parallelize_fn=_in_shards, data_parallel_size=processes, tensor_parallel_size=1
    )


def is_sharded(fabric: Fabric | None) -> bool:
    """Whether what is trained is kept in shards."""
    return fabric is not None and isinstance(fabric.strategy, ModelParallelStrategy)


def check_strategy(strategy: Strategy, *, checkpoint: bool) -> None:
    """Raises for what does not work with shards."""
    if isinstance(strategy, FSDPStrategy):
        raise ValueError(
            "strategy='fsdp' is PyTorch's first version, which replaces parameters by parts of one "
            "long vector: use Fabric(strategy=bbh.sharded_strategy(processes=…)), the second."
        )
    if isinstance(strategy, ModelParallelStrategy) and checkpoint:
        raise ValueError(
            "checkpoint= is not supported where parameters are kept in shards: leave it out, and "
            "use bbh.save after training."
        )


class Shards:
    """The shards of a posterior's weight distribution.

    Args:
        posterior: The posterior, whole and on its device. Its parameters become the first
            process's, and then shards; ``whole_again`` undoes the latter.
        objective: The module that uses them in its forward pass.
        fabric: Lightning Fabric with a ``sharded_strategy``.

    Attributes:
        objective: The module to call instead of the one that was given.
    """

    def __init__(self, posterior: Posterior[Any], objective: nn.Module, fabric: Fabric):
        share(fabric, [one.detach() for one in posterior.parameters()])
        share(fabric, [one.detach() for one in posterior.buffers()])
        self.objective: Any = fabric.setup_module(objective)
        self._posterior = posterior
        self._fabric = fabric
        self._in_use = True

    def average_the_rest(self, parameters: Iterable[nn.Parameter]) -> None:
        """Averages gradients of parameters that are not in shards: a few of the likelihood."""
        rest = [one.grad for one in parameters if one.grad is not None and not _is_shard(one)]
        if rest and self._fabric.world_size > 1:
            for gradient, mean in zip(rest, averaged(self._fabric, rest), strict=True):
                gradient.copy_(mean)

    def largest(self, parameters: Iterable[nn.Parameter]) -> float:
        """The largest absolute value in any process's shards; not finite if one of them is not."""
        # A shard may be empty, which has no largest value.
        parts = [part for one in parameters if (part := _own_part(one)).numel()]
        own = float(nn.utils.get_total_norm(parts, inf)) if parts else 0.0
        return max(gathered(self._fabric, own), key=lambda value: (not isfinite(value), value))

    @contextmanager
    def put_together(self) -> Generator[None]:
        """Within the block the posterior has its whole parameters, to draw from."""
        if not self._in_use:
            yield
            return
        module = self.objective.module
        module.unshard()
        try:
            yield
        finally:
            module.reshard()

    def whole_again(self) -> None:
        """Gives the posterior plain parameters again, in all processes, and ends training."""
        self._in_use = False
        for module in self._posterior.modules():
            for name, value in list(module.named_parameters(recurse=False)):
                if _is_shard(value):
                    whole = nn.Parameter(whole_tensor(value).detach(), value.requires_grad)
                    module.register_parameter(name, whole)


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that is kept in shards; any other tensor as it is."""
    return cast(Any, tensor).full_tensor() if _is_shard(tensor) else tensor


def _is_shard(tensor: Tensor) -> bool:
    # Imported here: it takes longer than all of this library, and few programs need it.
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _own_part(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).to_local() if _is_shard(tensor) else tensor


def _in_shards(objective: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    # Numbers without a dimension cannot be divided; only likelihoods have such parameters.
    single = {value for value in objective.parameters() if value.dim() == 0}
    place = partial(_placement, data_parallel.size())
    fully_shard(objective, mesh=data_parallel, shard_placement_fn=place, ignored_params=single)
    return objective


def _placement(processes: int, parameter: nn.Parameter) -> Any:
    """The dimension along which a parameter is divided: the first, if it is long enough.

    The first dimension of a few weight settings (one for MAP) is their number. Other dimensions
    must be multiples of the number of processes; where none is, some processes keep nothing.
    """
    from torch.distributed.tensor import Shard

    shape = parameter.shape
    even = [one for one in range(1, len(shape)) if shape[one] % processes == 0]
    if shape[0] >= processes or not even:
        return Shard(0)
    return Shard(max(even, key=lambda one: shape[one]))


def passes_through(fabric: Fabric) -> bool:
    """Whether Fabric's wrapper of a module only calls it: in single precision on a single CPU.

    A wrapper that looks through all arguments and results takes a share of a small network's step.
    """
    plain = type(fabric.strategy) is SingleDeviceStrategy
    return plain and type(fabric.strategy.precision) is Precision and fabric.device.type == "cpu"
