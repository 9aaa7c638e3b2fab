"""hypnettorch: hypernetworks, without a divergence to a prior."""

from importlib.metadata import version

import torch
from hypnettorch.hnets import ChunkedHMLP
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from bbh.generators.single import default_chunk
from bbh_studies.bench.contenders import Contender, batch_sizes
from bbh_studies.bench.problems import Problem

_NOISE, _DRAWS = 8, 5


def contenders(problem: Problem) -> list[Contender]:
    """A chunked hypernetwork of the size of our ``Single``, five draws per step."""
    network = problem.make_network().to(problem.device)
    shapes = {name: value.shape for name, value in network.named_parameters()}
    total = sum(shape.numel() for shape in shapes.values())
    hypernet = ChunkedHMLP(
        [list(shape) for shape in shapes.values()],
        default_chunk(total),
        chunk_emb_size=32,
        uncond_in_size=_NOISE,
        cond_in_size=0,
        layers=(64, 256, 512),
        activation_fn=torch.nn.LeakyReLU(0.1),
        no_cond_weights=True,
        num_cond_embs=0,
        verbose=False,
    ).to(problem.device)
    optimizer = torch.optim.Adam(hypernet.parameters(), lr=1e-4, fused=True)

    def draw(number: int) -> list[dict[str, Tensor]]:
        noise = torch.randn(number, _NOISE, device=problem.device)
        made = hypernet.forward(uncond_input=noise, ret_format="sequential")
        return [dict(zip(shapes, one, strict=True)) for one in made]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses = [
            F.cross_entropy(functional_call(network, one, (problem.inputs,)), problem.targets)
            for one in draw(_DRAWS)
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()

    def predict(batch_size: int | None) -> Tensor:
        with torch.inference_mode():
            draws = draw(problem.sizes.draws)
            return torch.cat(
                [
                    sum(functional_call(network, one, (piece,)).softmax(-1) for one in draws)
                    / len(draws)
                    for piece in problem.test_inputs.split(batch_size or problem.sizes.images)
                ]
            )

    return [
        Contender(
            name="hypnettorch",
            library=f"hypnettorch {version('hypnettorch')}",
            method="bbh",
            step=step,
            predict=predict,
            parameters=sum(value.numel() for value in hypernet.parameters()),
            batch_sizes=batch_sizes(problem),
            note="no KL: it has none",
        )
    ]
