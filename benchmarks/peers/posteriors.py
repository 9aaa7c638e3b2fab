"""posteriors: functional variational inference on parameters as a dictionary."""

from importlib.metadata import version

import posteriors
import torch
import torchopt
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from bbh_studies.bench.contenders import Contender, average, batch_sizes
from bbh_studies.bench.problems import Problem


def contenders(problem: Problem) -> list[Contender]:
    """Diagonal variational inference with prior N(0, 1), updated in place."""
    network = problem.make_network().to(problem.device)
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def log_posterior(values, batch):
        logits = functional_call(network, values, (batch[0],))
        log_prior = posteriors.diag_normal_log_prob(values, sd_diag=1.0, normalize=False)
        return -F.cross_entropy(logits, batch[1]) + log_prior / problem.num_data, torch.tensor([])

    transform = posteriors.vi.diag.build(
        log_posterior,
        torchopt.adam(lr=1e-4, use_accelerated_op=True),
        temperature=1 / problem.num_data,
        init_log_sds=-4.5,
    )
    held = {"state": transform.init(parameters)}
    batch = (problem.inputs, problem.targets)

    def step() -> None:
        held["state"], _ = transform.update(held["state"], batch, inplace=True)

    # On a CPU batched convolution kernels are slower than one draw after the other.
    in_turn = any(isinstance(module, nn.Conv2d) for module in network.modules())

    def predict(batch_size: int | None) -> Tensor:
        draws = problem.sizes.draws
        if in_turn:

            def one(inputs: Tensor) -> Tensor:
                values = posteriors.vi.diag.sample(held["state"])
                return functional_call(network, dict(values), (inputs,))

            return average(one, problem.test_inputs, draws, batch_size)
        with torch.inference_mode():
            values = dict(posteriors.vi.diag.sample(held["state"], (draws,)))
            return torch.cat(
                [
                    vmap(lambda one, x: functional_call(network, one, (x,)), (0, None))(values, x)
                    .softmax(-1)
                    .mean(0)
                    for x in problem.test_inputs.split(batch_size or problem.sizes.images)
                ]
            )

    return [
        Contender(
            name="posteriors",
            library=f"posteriors {version('posteriors')}",
            method="bbb",
            step=step,
            predict=predict,
            parameters=2 * sum(value.numel() for value in parameters.values()),
            batch_sizes=batch_sizes(problem),
        )
    ]
