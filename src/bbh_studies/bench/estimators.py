"""The estimator card: how far off, how noisy and how slow every divergence is on known targets."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor, nn
from torch import distributions as td

from bbh.distribution import Cost
from bbh.divergences import (
    Adversarial,
    ClosedForm,
    Divergence,
    JointNearestNeighbour,
    NearestNeighbour,
    NearestNeighbourEntropy,
    NormalMarginals,
)
from bbh.priors import Normal
from bbh_studies.bench.document_tables import ESTIMATOR_TABLES, estimator_table
from bbh_studies.bench.settings import Settings
from bbh_studies.bench.targets import TARGETS, Target
from bbh_studies.bench.timing import Task, interleaved
from bbh_studies.record import Record

STUDY, FOLDER = "bench-estimators", "estimators"
PRIOR = Normal(1.0)


@dataclass(frozen=True)
class Estimator:
    """A divergence with a number of draws.

    Attributes:
        title: How tables name it.
        divergence: What is measured.
        num_samples: n, the number of draws of every weight.
    """

    title: str
    divergence: Divergence
    num_samples: int

    @property
    def exact(self) -> bool:
        """Whether it is a closed form, which needs no draws."""
        return self.divergence.needs_marginals

    def applies(self, target: Target) -> bool:
        """Whether it can be computed for this target: closed forms are those of Gaussians."""
        return not self.exact or isinstance(target.distribution, td.Normal)


ESTIMATORS = {
    **{
        f"entropy-{n}": Estimator(
            f"`NearestNeighbourEntropy()`, n = {n}", NearestNeighbourEntropy(), n
        )
        for n in (5, 10, 16, 30)
    },
    "entropy-5-third": Estimator(
        "`NearestNeighbourEntropy(3)`, n = 5, the default of 0.1", NearestNeighbourEntropy(3), 5
    ),
    **{
        f"nearest-{n}": Estimator(f"`NearestNeighbour()`, n = {n}", NearestNeighbour(), n)
        for n in (5, 10, 30)
    },
    "joint-nearest-10": Estimator("`JointNearestNeighbour()`, n = 10", JointNearestNeighbour(), 10),
    "adversarial-10": Estimator("`Adversarial()`, n = 10", Adversarial(), 10),
    "closed-form": Estimator("`ClosedForm()`", ClosedForm(), 1),
}


@dataclass(frozen=True)
class CardSizes:
    """How much the card computes.

    Args:
        vectors: How often the estimate of a vector of weights is repeated.
        vector: Weights in such a vector; all have the same target and are independent.
        critic_steps: Steps of Adam (1e-3) that train an adversarial critic on every target.
        timed_weights: Weights in the vector that is timed.
    """

    vectors: int = 400
    vector: int = 100
    critic_steps: int = 1000
    timed_weights: int = 430_000


def bench_estimators(settings: Settings, console: Console, sizes: CardSizes) -> None:
    """Measures, prints and records all divergences; one record each.

    Args:
        settings: Rounds, repeats, seed and folder.
        console: For tables and progress.
        sizes: How much is computed.
    """
    torch.manual_seed(settings.seed)
    # The load is recorded, since times say little if other programs use the machine.
    load_before = os.getloadavg()[0]
    measured: dict[str, dict[str, float]] = {name: {} for name in ESTIMATORS}
    with console.status("starting") as status:
        for name, estimator in ESTIMATORS.items():
            for key, target in TARGETS.items():
                if estimator.applies(target):
                    status.update(f"{name}, {target.title}")
                    found = measure(estimator, target, sizes)
                    measured[name] |= {f"{key}_{word}": value for word, value in found.items()}
        status.update("times")
        tasks = [
            Task(name, work(one, sizes.timed_weights), settings.repeats)
            for name, one in ESTIMATORS.items()
        ]
        timed = interleaved(tasks, rounds=settings.rounds, seed=settings.seed)
    for name, timing in timed.timings.items():
        measured[name] |= timing.milliseconds("estimate")
    common = {
        **vars(sizes),
        "rounds": settings.rounds,
        "repeats": settings.repeats,
        "threads": torch.get_num_threads(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "failures": timed.failures,
    }
    records: list[Record] = []
    for row, (name, estimator) in enumerate(ESTIMATORS.items()):
        records.append(
            Record(
                study=STUDY,
                variant=name,
                method=type(estimator.divergence).__name__,
                preset="card",
                seed=settings.seed,
                config={
                    "row": row,
                    "title": estimator.title,
                    "divergence": repr(estimator.divergence),
                    "num_samples": estimator.num_samples,
                    **common,
                },
                metrics=measured[name],
                history=[],
                data={"inputs": "random"},
            )
        )
        records[-1].write(settings.out / FOLDER / name)
    for part in ESTIMATOR_TABLES:
        console.print(estimator_table(records, part), highlight=False, markup=False, soft_wrap=True)


def measure(estimator: Estimator, target: Target, sizes: CardSizes) -> dict[str, float]:
    """Bias and noise of the estimate, in nats a weight, and the noise of its gradient.

    The spread is the standard deviation of a vector's estimate, divided by the root of its number
    of weights. If weights are estimated one by one, this is the standard deviation for one weight.
    """
    critic = trained_critic(estimator, target, sizes)
    totals: list[Tensor] = []
    by_scale: list[Tensor] = []
    by_draw: list[Tensor] = []
    for _ in range(sizes.vectors):
        draws = target.draws(estimator.num_samples, sizes.vector).requires_grad_()
        log_scale = torch.zeros(sizes.vector, requires_grad=True)
        total = cost(estimator, draws * log_scale.exp(), target, log_scale, critic).complexity
        slopes = torch.autograd.grad(total, [log_scale, draws], materialize_grads=True)
        totals.append(total.detach())
        by_scale.append(slopes[0])
        by_draw.append(estimator.num_samples * slopes[1])
    estimates = torch.stack(totals).double()
    return {
        "bias": float(estimates.mean()) / sizes.vector - target.kl,
        "spread": float(estimates.std()) / sizes.vector**0.5,
        "scale_gradient": float(torch.cat(by_scale).std()),
        "draw_gradient": float(torch.cat(by_draw).std()),
    }


def cost(
    estimator: Estimator, draws: Tensor, target: Target, log_scale: Tensor, critic: nn.Module | None
) -> Cost:
    """The estimate for draws [S, D] of the target, whose scale has been changed."""
    q, scale = target.distribution, log_scale.exp()
    marginals = NormalMarginals(q.mean * scale, q.stddev * scale) if estimator.exact else None
    shapes = {"weight": draws.shape[1:]}
    return estimator.divergence(
        {"weight": draws}, shapes, PRIOR, marginals=marginals, helper=critic
    )


def trained_critic(estimator: Estimator, target: Target, sizes: CardSizes) -> nn.Module | None:
    """The divergence's helper network if it has one, trained on draws of this target alone."""
    critic = estimator.divergence.helper({"weight": torch.Size([sizes.vector])})
    if critic is None:
        return None
    unchanged = torch.zeros(sizes.vector)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(sizes.critic_steps):
        draws = target.draws(estimator.num_samples, sizes.vector)
        loss = torch.as_tensor(cost(estimator, draws, target, unchanged, critic).auxiliary)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return critic


def work(estimator: Estimator, num_weights: int) -> Callable[[], object]:
    """One estimate with its gradient for a network of this size; a critic's step included."""
    divergence, shapes = estimator.divergence, {"weight": torch.Size([num_weights])}
    draws = torch.randn(estimator.num_samples, num_weights, requires_grad=True)
    marginals = NormalMarginals(
        torch.zeros(num_weights, requires_grad=True), torch.ones(num_weights, requires_grad=True)
    )
    critic = divergence.helper(shapes)
    trained = [*(marginals if estimator.exact else [draws])]
    trained += critic.parameters() if critic is not None else []

    def estimate() -> None:
        found = divergence({"weight": draws}, shapes, PRIOR, marginals=marginals, helper=critic)
        torch.autograd.grad(found.complexity + found.auxiliary, trained)

    return estimate
