"""Networks and problems that several tests share."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bbh
from bbh.generators import Sliced
from bbh_studies.problems.mnist import LeNet as LeNet  # re-exported for the tests

# Small where a method can be: many tests run every registered one.
_SMALL: dict[str, dict[str, Any]] = {
    "deep_ensemble": {"num_members": 2},
    "bayes_by_hypernet": {"generator": Sliced(hidden=(8, 8))},
    "mixture": {"num_members": 2, "generator": Sliced(hidden=(8, 8))},
}
METHODS: dict[str, Callable[..., Any]] = {
    name: partial(method, **_SMALL.get(name, {}))
    for name, method in bbh.methods.registered().items()
}
over_methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


class SmallLeNet(nn.Module):
    """Convolutions and matrices in LeNet's order, small enough for many runs."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.fc1 = nn.Linear(6, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.conv2(F.relu(self.conv1(images))))
        return self.fc2(F.relu(self.fc1(hidden.amax((2, 3)))))


class BatchNormNet(nn.Module):
    """Batch norm with running statistics, an integer buffer among them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.conv(images))).mean((2, 3)))


class LSTMNet(nn.Module):
    """Embedding, LSTM, GRU: token sequences to classes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.gru = nn.GRU(6, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        hidden, _ = self.gru(hidden)
        return self.head(hidden[:, -1])


class TransformerNet(nn.Module):
    """A transformer encoder with its own dropout and a positional parameter."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.position = nn.Parameter(0.1 * torch.randn(5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


class TiedNet(nn.Module):
    """The output layer's matrix is the embedding's."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 6)
        self.middle = nn.Linear(6, 6)
        self.output = nn.Linear(6, 3)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(tokens).mean(1))))


class TwoInputs(nn.Module):
    """Two inputs, one of them frozen along the way, in nested containers."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleDict(
            {
                "left": nn.Sequential(nn.Linear(2, 4), nn.Tanh()),
                "right": nn.ModuleList([nn.Linear(3, 4)]),
            }
        )
        self.head = nn.Linear(4, 3)
        self.branches["left"].requires_grad_(False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(self.branches["left"](left) + self.branches["right"][0](right))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def printed_number(script: str) -> float:
    """What a script prints in a process of its own, where memory can be measured from scratch."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return float(done.stdout)
