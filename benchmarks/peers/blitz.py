"""blitz: layers that draw a weight per pass, and its log densities with it."""

from importlib.metadata import version

import torch
from blitz.modules import BayesianConv2d, BayesianLinear
from blitz.utils import variational_estimator
from torch import nn

from bbh_studies.bench.contenders import Contender, network_contender, replace_layers
from bbh_studies.bench.problems import Problem


def contenders(problem: Problem) -> list[Contender]:
    """Bayes by Backprop with a Gaussian prior, KL estimated from the draw."""
    torch.distributions.Distribution.set_default_validate_args(False)
    # Faster than its mixture with all the weight on one part.
    prior = {"prior_dist": torch.distributions.Normal(0.0, 1.0), "posterior_rho_init": -4.6}
    network = replace_layers(
        problem.make_network(),
        lambda one: BayesianLinear(one.in_features, one.out_features, **prior),
        lambda one: BayesianConv2d(one.in_channels, one.out_channels, one.kernel_size, **prior),
    )
    estimator = variational_estimator(_Estimator)(network)
    criterion = nn.CrossEntropyLoss()

    def loss(inputs, targets):
        return estimator.sample_elbo(
            inputs, targets, criterion, sample_nbr=1, complexity_cost_weight=1 / problem.num_data
        )

    name = f"blitz {version('blitz-bayesian-pytorch')}"
    return [network_contender("blitz", name, problem, estimator, loss)]


class _Estimator(nn.Module):
    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(inputs)
