"""torch-uncertainty: Bayesian layers, MC dropout and deep ensembles."""

from importlib.metadata import version

import torch
from torch import nn

from bbh_studies.bench.contenders import Contender, network_contender, replace_layers
from bbh_studies.bench.problems import Problem

# The library imports torchvision, whose wheels beside a CPU build of torch lack these operators
# and refuse to be imported without them. Nothing here calls them.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear  # noqa: E402
from torch_uncertainty.losses import ELBOLoss  # noqa: E402

NAME = f"torch-uncertainty {version('torch-uncertainty')}"


def contenders(problem: Problem) -> list[Contender]:
    """Bayes by Backprop with a Gaussian prior, KL estimated from the draw."""
    # Its draws go through torch.distributions, which check every argument unless told not to.
    torch.distributions.Distribution.set_default_validate_args(False)
    prior = {"prior_sigma_1": 1.0, "prior_pi": 1.0}
    network = replace_layers(
        problem.make_network(),
        lambda one: BayesLinear(one.in_features, one.out_features, **prior),
        lambda one: BayesConv2d(one.in_channels, one.out_channels, one.kernel_size, **prior),
    )
    elbo = ELBOLoss(network, nn.CrossEntropyLoss(), kl_weight=1 / problem.num_data, num_samples=1)
    return [
        network_contender(
            "torch-uncertainty", NAME, problem, network, lambda x, y: elbo(x, y).squeeze()
        )
    ]
