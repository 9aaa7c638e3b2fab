"""torchbnn: layers that draw a weight per pass, closed-form KL."""

import math

import torchbnn
from torch import nn
from torch.nn import functional as F
from torchbnn.functional import bayesian_kl_loss

from bbh_studies.bench.contenders import Contender, network_contender, replace_layers
from bbh_studies.bench.problems import Problem


def contenders(problem: Problem) -> list[Contender]:
    """Bayes by Backprop with prior N(0, 1), its KL summed."""
    network = replace_layers(
        problem.make_network(),
        lambda one: torchbnn.BayesLinear(0.0, 1.0, one.in_features, one.out_features),
        lambda one: torchbnn.BayesConv2d(
            0.0, 1.0, one.in_channels, one.out_channels, one.kernel_size[0]
        ),
    )

    # It starts as wide as the prior, where outputs overflow; as narrow as the others instead.
    for name, value in network.named_parameters():
        if name.endswith("log_sigma"):
            nn.init.constant_(value, math.log(0.01))

    def loss(inputs, targets):
        kl = bayesian_kl_loss(network, reduction="sum").squeeze()
        return F.cross_entropy(network(inputs), targets) + kl / problem.num_data

    return [
        network_contender("torchbnn", f"torchbnn {torchbnn.__version__}", problem, network, loss)
    ]
