"""Runs a network with one weight draw after the other."""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bbh.batches import Inputs
from bbh.execution.base import Execution, Runnable
from bbh.samples import Samples

logger = logging.getLogger("bbh")


@dataclass(frozen=True)
class Loop(Execution):
    """Runs the network with one weight draw after the other, which works for every network."""

    def run(
        self, network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
    ) -> Tensor:
        """Outputs of all draws; on a CPU, images have their channels innermost where possible."""
        if network.fits_channels_last is False:
            return _one_by_one(network, inputs, samples, inputs_per_draw)
        images = _channels_last(network, inputs)
        if images is None:
            return _one_by_one(network, inputs, samples, inputs_per_draw)
        if network.fits_channels_last:
            return _one_by_one(network, images, samples, inputs_per_draw)
        if any(_has_wrong_gradients(module) for module in network.network.modules()):
            network.fits_channels_last = False
            return _one_by_one(network, inputs, samples, inputs_per_draw)
        return _try_channels_last(network, images, inputs, samples, inputs_per_draw)


def _one_by_one(
    network: Runnable, inputs: Inputs, samples: Samples, inputs_per_draw: bool
) -> Tensor:
    call = network.prepare()
    each = [
        call(inputs[index] if inputs_per_draw else inputs, setting)
        for index, setting in enumerate(network.settings(samples))
    ]
    return each[0].unsqueeze(0) if len(each) == 1 else torch.stack(each)


def _try_channels_last(
    network: Runnable, images: Tensor, inputs: Inputs, samples: Samples, inputs_per_draw: bool
) -> Tensor:
    """Tries channels-last images for the first time.

    If this fails, buffers and random state are restored and the pass uses the original layout.
    """
    carried = [samples[name] for name in samples if name not in network.weights]
    saved = [(value, value.clone()) for value in (*network.buffers(), *carried)]
    randomness = torch.get_rng_state()
    try:
        outputs = _one_by_one(network, images, samples, inputs_per_draw)
        network.fits_channels_last = True
    except Exception as error:
        # The usual cause is a call of view() that assumes the original layout (reshape() would
        # work). If the network itself has an error, the second attempt raises it.
        torch.set_rng_state(randomness)
        for value, before in saved:
            value.copy_(before)
        outputs = _one_by_one(network, inputs, samples, inputs_per_draw)
        network.fits_channels_last = False
        logger.info("%s keeps channels first: %s", type(network.network).__name__, error)
    return outputs


def _channels_last(network: Runnable, inputs: Inputs) -> Tensor | None:
    """Images with their channels innermost in memory; None where that is of no use.

    On a CPU convolutions and pooling are faster in this layout, and each layer passes it on to the
    next. The values are the same in both layouts; only code that reads strides sees a difference.
    """
    if not isinstance(inputs, Tensor) or inputs.dim() < 4 or inputs.device.type != "cpu":
        return None
    if not network.has_layer((nn.Conv2d,)) or not torch.backends.mkldnn.is_available():
        return None
    # Not contiguous(memory_format=…), which changes nothing for images with one channel.
    moved = inputs.movedim(-3, -1).contiguous()
    strides = list(moved.movedim(-1, -3).stride())
    strides[-3] = 1
    return moved.as_strided(inputs.shape, strides)


def _has_wrong_gradients(module: nn.Module) -> bool:
    """Whether PyTorch 2.13 returns wrong gradients for this layer with channels innermost.

    They are wrong for 1×1 convolutions with a stride and two to six input channels.
    """
    return (
        isinstance(module, nn.Conv2d)
        and set(module.kernel_size) == {1}
        and set(module.stride) != {1}
        and module.in_channels // module.groups < 8
    )
