"""Networks with unusual parts, each with inputs, that several tests share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import bbh
from scenarios import TiedNet, mlp

B = 6
Categorical = bbh.likelihoods.Categorical


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(3, 4, batch_first=True, bidirectional=True, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.cell(inputs)[0][:, -1])


class StepByStep(nn.Module):
    """A recurrent cell in a Python loop."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        state = None
        for step in inputs.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict(
            {"first": nn.ModuleDict({"inner": nn.Linear(4, 5)}), "last": nn.Linear(5, 3)}
        )

    def forward(self, inputs):
        return self.parts["last"](torch.tanh(self.parts["first"]["inner"](inputs)))


class Buffers(nn.Module):
    """Integer, boolean and non-persistent buffers, all of them used."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))
        self.register_buffer("on", torch.tensor([True, False, True]))
        self.register_buffer("shift", torch.randn(3), persistent=False)

    def forward(self, inputs):
        return self.layer(inputs[:, self.order]) * self.on + self.shift


class PartlyFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 5).requires_grad_(False)
        self.head = nn.Linear(5, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, inputs):
        return self.head(torch.relu(self.backbone(inputs)))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([torch.randn(4, 5), torch.randn(5, 3)])

    def forward(self, inputs):
        return torch.tanh(inputs @ self.matrices[0]) @ self.matrices[1]


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(inputs) / self.temperature


class LooksAtValues(nn.Module):
    """Control flow that depends on the weights, so that draws take different branches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        if hidden.sum() > 0:
            hidden = hidden * 2
        return hidden.exp() if hidden.max().item() < 0.5 else hidden


class Names(nn.Module):
    """Parameters whose names are also those of methods and attributes of containers."""

    def __init__(self):
        super().__init__()
        self.names = nn.Parameter(torch.randn(4, 3))
        self.items_ = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.items_(inputs @ self.names)


class KeysAndValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(4, 3))
        self.values = nn.Parameter(torch.randn(3, 3))

    def forward(self, inputs):
        return inputs @ self.keys @ self.values


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(4, 2, 3)

    def forward(self, left, right):
        return self.bilinear(left, right)


def vectors() -> torch.Tensor:
    return torch.randn(B, 4)


def sequences() -> torch.Tensor:
    return torch.randn(B, 5, 3)


def attend(network, inputs):
    return network(inputs, inputs, inputs)[0].mean(1)


@dataclass
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any] = vectors
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "weight norm": Case(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(4, 5)),
            nn.ReLU(),
            parametrizations.weight_norm(nn.Linear(5, 3)),
        )
    ),
    "spectral norm": Case(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3))
    ),
    "orthogonal": Case(
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 3))
    ),
    "bidirectional gru": Case(lambda: Recurrent(nn.GRU), sequences),
    "bidirectional lstm": Case(lambda: Recurrent(nn.LSTM, num_layers=2), sequences),
    "lstm cell": Case(StepByStep, sequences),
    "attention": Case(
        lambda: nn.MultiheadAttention(3, 1, batch_first=True), sequences, {"forward": attend}
    ),
    "transposed convolution": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        lambda: torch.randn(B, 1, 5, 5),
    ),
    "grouped convolution": Case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 3)
        ),
        lambda: torch.randn(B, 4, 5, 5),
    ),
    "one-dimensional convolution": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        lambda: torch.randn(B, 2, 7),
    ),
    "three-dimensional convolution": Case(
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 2, stride=2), nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        lambda: torch.randn(B, 1, 4, 4, 4),
    ),
    "embedding bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(7, 5), nn.Linear(5, 3)),
        lambda: torch.randint(0, 7, (B, 4)),
    ),
    "normalisation layers": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 8),
            nn.LayerNorm(8),
            nn.GroupNorm(2, 8),
            nn.RMSNorm(8),
            nn.PReLU(),
            nn.Linear(8, 3),
        )
    ),
    "instance norm": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        lambda: torch.randn(B, 1, 5, 5),
    ),
    "nested containers": Case(Nested),
    "buffers": Case(Buffers),
    "partly frozen": Case(PartlyFrozen),
    "parameter list": Case(Lists),
    "bare layer": Case(lambda: nn.Linear(4, 3)),
    "scalar": Case(Scalar),
    "double precision": Case(
        lambda: mlp().double(), lambda: torch.randn(B, 4, dtype=torch.float64)
    ),
    "control flow": Case(LooksAtValues),
    "two inputs": Case(Pair, lambda: (torch.randn(B, 4), torch.randn(B, 2))),
    "names": Case(Names),
    "keys and values": Case(KeysAndValues),
    "tied": Case(TiedNet, lambda: torch.randint(0, 3, (B, 5))),
}
over_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
