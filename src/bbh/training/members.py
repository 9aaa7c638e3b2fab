"""``fit_members``: processes that each train their own members of an ensemble or mixture."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import Tensor

from bbh.posterior import Posterior
from bbh.processes import gathered, gathered_or_raised
from bbh.training import checkpoints
from bbh.training.fitting import fit
from bbh.training.history import History
from bbh.training.options import Checkpoint, Validation
from bbh.training.random_numbers import draw_differently, same_order


def fit_members(
    posterior: Posterior[Any], train_loader: Iterable[Any], *, fabric: Fabric, **options: Any
) -> History:
    """Trains an ensemble or a mixture with its members dealt out over processes.

    Process r of R trains the members r, r + R, r + 2R, … on all the data, and at the end all
    processes have all members. Members do not wait for each other, so this is faster than dealing
    out the data, as ``fit`` does; but a member must fit on one device.

    Each member is trained as it would be in one process: batches come in the same order in all
    processes, and learned parameters of the likelihood follow the mean of all members. With Adam
    (the default) the result of an ensemble is that of ``fit`` up to rounding. Plain SGD takes steps
    as for the members of one process alone, and ``gradient_clip`` limits their gradient alone: the
    loss is the mean over these members.

    Args:
        posterior: The posterior to train, in place, the same in all processes.
        train_loader: As for ``fit``, all the data in every process.
        fabric: Lightning Fabric with several processes, after ``fabric.launch()``.
        options: Further arguments of ``fit``. A checkpoint is written by each process, with its
            number after the path. If members share learned parameters of the likelihood, all
            checkpoints must be of the same epoch to go on, which is checked. Early stopping would
            judge some members only, and is refused.

    Returns:
        The history of this process's members.
    """
    whole, number, rank = posterior.weights, fabric.world_size, fabric.global_rank
    if whole.num_members < number:
        raise ValueError(
            f"there are {number} processes, and the posterior has {whole.num_members} member(s) "
            "that can be trained apart: use a deep_ensemble or a mixture with as many members, or "
            "bbh.fit, which deals out the data."
        )
    options = _of_process(options, fabric)
    posterior.to(fabric.device)
    shared = [one for one in posterior.likelihood.parameters() if one.requires_grad]
    if shared:
        _check_same_step(options.get("checkpoint"), fabric)
    dealt = [list(range(first, whole.num_members, number)) for first in range(number)]
    own = whole.some_members(dealt[rank])
    share = len(dealt[rank]) / whole.num_members
    # All processes must take part in every message, which a recorded step would not send.
    options |= {"cuda_graph": False} if shared else {}
    alone = Fabric(
        strategy=SingleDeviceStrategy(fabric.device, precision=fabric.strategy.precision)
    )

    def work() -> tuple[History, dict[str, Tensor]]:
        posterior.replace_weights(own)
        try:
            history = fit(posterior, train_loader, fabric=alone, **options)
            return history, {name: value.cpu() for name, value in own.state_dict().items()}
        finally:
            posterior.replace_weights(whole)

    with same_order(train_loader, fabric), _averaged_gradients(shared, share, number):
        draw_differently(fabric)
        # A process that fails while the others wait for its gradient must not send anything else.
        trained = gathered(fabric, work()) if shared else gathered_or_raised(fabric, work)
    for members, (_, state) in zip(dealt, trained, strict=True):
        part = whole.some_members(members)
        part.load_state_dict(state)
        whole.put_members(members, part)
    _share_the_rest(posterior, fabric)
    posterior.eval()
    return trained[rank][0]


def _of_process(options: dict[str, Any], fabric: Fabric) -> dict[str, Any]:
    """The options of ``fit`` for this process: only the first one shows and logs anything."""
    validation, checkpoint = options.get("validation"), options.get("checkpoint")
    if isinstance(validation, Validation) and validation.patience is not None:
        raise ValueError(
            "patience= cannot stop members that do not know of each other: leave it out, or use "
            "bbh.fit, which deals out the data."
        )
    options = dict(options)
    if isinstance(checkpoint, Checkpoint):
        path = f"{checkpoint.path}-{fabric.global_rank}"
        options["checkpoint"] = replace(checkpoint, path=path)
    elif checkpoint is not None:
        options["checkpoint"] = Path(f"{checkpoint}-{fabric.global_rank}")
    if not fabric.is_global_zero:
        options |= {"progress": False, "log_dir": None}
    return options


def _check_same_step(checkpoint: object, fabric: Fabric) -> None:
    """Raises unless all processes can go on from the same step.

    Members that share learned parameters send each other a gradient in every step. A kill between
    two writes leaves checkpoints of different epochs, whose steps do not belong together.
    """
    if not isinstance(checkpoint, Checkpoint) or not checkpoint.resume:
        return
    path = Path(checkpoint.path)
    steps = gathered_or_raised(
        fabric, lambda: checkpoints.read(path)["step"] if path.exists() else 0
    )
    if len(set(steps)) > 1:
        raise checkpoints.CheckpointError(
            f"{path} and those of the other processes are of different steps "
            f"({', '.join(map(str, steps))}): the run was stopped between two writes. Go on from "
            "copies of one epoch, or delete them to start anew."
        )


@contextmanager
def _averaged_gradients(
    parameters: list[torch.nn.Parameter], share: float, number: int
) -> Generator[None]:
    """Within the block these parameters get the mean gradient over the members of all processes."""

    def mean(gradient: Tensor) -> Tensor:
        total = gradient * share
        if number > 1:
            torch.distributed.all_reduce(total)
        return total

    handles = [one.register_hook(mean) for one in parameters]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _share_the_rest(posterior: Posterior[Any], fabric: Fabric) -> None:
    """Gives all but the weights the first process's values: buffers, reference, likelihood."""
    state = posterior.state_dict()
    rest = {name: value.cpu() for name, value in state.items() if not name.startswith("weights.")}
    posterior.load_state_dict(fabric.broadcast(rest), strict=False)
