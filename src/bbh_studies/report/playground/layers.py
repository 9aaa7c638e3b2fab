"""A network as a list of layers that the page's own JavaScript (``network.js``) can execute."""

from typing import Any

from torch import nn


def describe(network: nn.Module) -> list[dict[str, Any]]:
    """The layers in their order, each with the number of its weights.

    >>> describe(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    [{'kind': 'dense', 'weights': 9, 'inputs': 2, 'outputs': 3}, {'kind': 'relu', 'weights': 0}]

    Raises:
        ValueError: There is a layer that ``network.js`` does not know.
    """
    # Flattening changes no number, and values lie in its order already.
    modules = [one for one in network.children() if not isinstance(one, nn.Flatten)]
    return [_layer(module) for module in modules]


def _layer(module: nn.Module) -> dict[str, Any]:
    weights = sum(one.numel() for one in module.parameters())
    match module:
        case nn.Conv2d(kernel_size=(size, _)) if _is_plain(module):
            return {
                "kind": "convolution",
                "weights": weights,
                "inputs": module.in_channels,
                "outputs": module.out_channels,
                "kernel": size,
            }
        case nn.Linear() if module.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sizes = {"inputs": module.in_features, "outputs": module.out_features}
            return {"kind": "dense", "weights": weights, **sizes}
        case nn.MaxPool2d() if module.kernel_size == module.stride and module.padding == 0:
            return {"kind": "pooling", "weights": 0, "size": module.kernel_size}
        case nn.ReLU():
            return {"kind": "relu", "weights": 0}
        case _:
            raise ValueError(f"a page cannot compute {module}: network.js has no such layer.")


def _is_plain(layer: nn.Conv2d) -> bool:
    """Whether ``network.js`` computes it: square kernel, no padding, stride one, with biases."""
    square = len(set(layer.kernel_size)) == 1
    rest = (layer.stride, layer.padding, layer.dilation, layer.groups)
    return square and rest == ((1, 1), (0, 0), (1, 1), 1) and layer.bias is not None
