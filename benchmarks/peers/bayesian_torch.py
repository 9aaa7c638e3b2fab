"""bayesian-torch: converts a network's layers in place."""

from importlib.metadata import version

from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from torch.nn import functional as F

from bbh_studies.bench.contenders import Contender, network_contender
from bbh_studies.bench.problems import Problem

NAME = f"bayesian-torch {version('bayesian-torch')}"


def contenders(problem: Problem) -> list[Contender]:
    """Bayes by Backprop with one draw per batch, the faster of its two kinds of layers."""
    network = problem.make_network()
    dnn_to_bnn(
        network,
        {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": -4.0,
            "type": "Reparameterization",
            "moped_enable": True,
            "moped_delta": 0.1,
        },
    )

    def loss(inputs, targets):
        # Its KL is a mean over the weights of a layer; a factor would cost nothing.
        kl = get_kl_loss(network)
        return F.cross_entropy(network(inputs), targets) + kl / problem.num_data

    return [network_contender("bayesian-torch", NAME, problem, network, loss)]
