"""Checks whether a network can be made Bayesian."""

import itertools

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm


def check_supported(network: nn.Module) -> None:
    """Raises if the network cannot be made Bayesian; the message names the module and a remedy."""
    for name, module in network.named_modules():
        where = f"module {name!r} ({type(module).__name__})" if name else type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{where} is compiled by torch.jit, whose weights are fixed inside it. Pass the "
                "Python module it was made from."
            )
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise TypeError(
                f"{where} wraps the network for several devices. Pass network.module; bbh.fit "
                "distributes by itself."
            )
        # A module with the old weight_norm has a computed tensor as weight, which cannot be copied.
        hooks = module._forward_pre_hooks.values()  # pyright: ignore[reportPrivateUsage]
        if any(isinstance(hook, WeightNorm) for hook in hooks):
            raise TypeError(
                f"{where} uses torch.nn.utils.weight_norm, which PyTorch has replaced: use the one "
                "in torch.nn.utils.parametrizations."
            )
        own = (module.named_parameters(recurse=False), module.named_buffers(recurse=False))
        for leaf, value in itertools.chain(*own):
            if is_lazy(value):
                raise TypeError(
                    f"{where}: {leaf!r} has no shape yet. Run one batch through the network first."
                )
            if value.requires_grad and value.is_complex():
                raise TypeError(
                    f"{where}: parameter {leaf!r} is complex; priors here are over real weights. "
                    "Freeze it with requires_grad_(False), or store real and imaginary part."
                )
