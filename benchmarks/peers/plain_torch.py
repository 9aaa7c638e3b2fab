"""PyTorch alone: what MAP, dropout and an ensemble cost whoever writes them by hand."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from bbh_studies.bench.contenders import Contender, network_contender
from bbh_studies.bench.problems import Problem

# As many as our ensemble has by default.
_MEMBERS = 5
NAME = f"torch {torch.__version__}"


def contenders(problem: Problem) -> list[Contender]:
    """One network with an L2 penalty, five of them, and one with dropout left on."""
    network = problem.make_network()
    masked = _with_dropout(problem.make_network())
    ensemble = _Ensemble([problem.make_network() for _ in range(_MEMBERS)])
    losses = [_loss(problem, member) for member in ensemble.members]

    def mean_loss(inputs, targets):
        return sum(loss(inputs, targets) for loss in losses) / _MEMBERS

    return [
        network_contender(
            "torch", NAME, problem, network, _loss(problem, network), method="map", num_draws=1
        ),
        network_contender(
            "torch-ensemble",
            NAME,
            problem,
            ensemble,
            mean_loss,
            method="ensemble",
            num_draws=_MEMBERS,
        ),
        network_contender(
            "torch-dropout", NAME, problem, masked, _loss(problem, masked), method="dropout"
        ),
    ]


def _loss(problem: Problem, network: nn.Module):
    def loss(inputs, targets):
        penalty = sum(value.square().sum() for value in network.parameters()) / 2
        return F.cross_entropy(network(inputs), targets) + penalty / problem.num_data

    return loss


class _Ensemble(nn.Module):
    """Each pass is the next member's."""

    def __init__(self, members: list[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.passes = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.members[self.passes % len(self.members)](inputs)


def _with_dropout(network: nn.Module) -> nn.Module:
    """Dropout before every layer with weights but the first."""
    network = copy.deepcopy(network)
    first = True
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Linear | nn.Conv2d):
            if not first:
                setattr(network, name, nn.Sequential(nn.Dropout(0.5), child))
            first = False
    return network
