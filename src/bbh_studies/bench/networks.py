"""Networks that benchmarks need and no study has."""

from torch import nn


def mlp(width: int = 100) -> nn.Module:
    """Two hidden layers on 784 inputs."""
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
