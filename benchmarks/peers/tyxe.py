"""TyXe: variational inference in Pyro."""

from importlib.metadata import version

import pyro
import pyro.distributions as dist
import torch
import tyxe
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import Tensor

from bbh_studies.bench.contenders import Contender, batch_sizes
from bbh_studies.bench.problems import Problem


def contenders(problem: Problem) -> list[Contender]:
    """Bayes by Backprop with prior N(0, 1) and the KL in closed form."""
    # Pyro keeps parameters by name in one place, and checks every argument unless told not to.
    pyro.clear_param_store()
    pyro.enable_validation(False)
    network = problem.make_network().to(problem.device)
    weights = sum(value.numel() for value in network.parameters())
    initial = tyxe.guides.PretrainedInitializer.from_net(network, prefix="net")
    model = tyxe.VariationalBNN(
        network,
        tyxe.priors.IIDPrior(dist.Normal(0.0, 1.0)),
        tyxe.likelihoods.Categorical(problem.num_data),
        lambda module: tyxe.guides.AutoNormal(module, init_loc_fn=initial, init_scale=0.01),
    )
    adam = pyro.optim.Adam({"lr": 1e-4, "fused": True})
    svi = SVI(model.model, model.guide, adam, loss=TraceMeanField_ELBO())

    def predict(batch_size: int | None) -> Tensor:
        with torch.inference_mode():
            return torch.cat(
                [
                    model.predict(piece, num_predictions=problem.sizes.draws, aggregate=False)
                    .softmax(-1)
                    .mean(0)
                    for piece in problem.test_inputs.split(batch_size or problem.sizes.images)
                ]
            )

    return [
        Contender(
            name="tyxe",
            library=f"tyxe {version('tyxe')}",
            method="bbb",
            step=lambda: svi.step((problem.inputs,), problem.targets),
            predict=predict,
            parameters=2 * weights,
            batch_sizes=batch_sizes(problem),
        )
    ]
