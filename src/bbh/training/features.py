"""Features of a frozen network, computed once, to train the posterior of its last module on."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from bbh.batches import Batch, Inputs, as_batch, move
from bbh.execution import Loop
from bbh.posterior import Posterior
from bbh.samples import Samples
from bbh.training.random_numbers import loader_generators, random_state_kept


@contextmanager
def cached_features(
    posterior: Posterior[Any], *loaders: Iterable[Any], fabric: Fabric | None = None
) -> Generator[tuple[Iterable[Any], ...]]:
    """Computes once what a frozen network passes to its Bayesian last module, to train on that.

    ::

        posterior = bbh.methods.bayes_by_hypernet(
            network, likelihood, bayesian="head", freeze_rest=True
        )
        with bbh.cached_features(posterior, train_loader, validation_loader) as (train, validation):
            bbh.fit(posterior, train, epochs=100, validation=validation)

    Within the block the posterior takes features instead of the network's inputs, and the loaders
    it yields have them; afterwards it takes inputs again. What ``fit`` computes is the same as
    without the cache, only faster.

    Args:
        posterior: A posterior that was made with ``freeze_rest=True`` and whose Bayesian parameters
            lie in one module. The output of that module is the output of the network. It is moved
            to the device that Fabric chooses.
        loaders: Batches as for ``bbh.fit``. If a loader shuffles, its cache does so too. Inputs
            must be the same in every epoch: random augmentation is an error.
        fabric: As in ``bbh.fit``; None takes one device.

    Raises:
        ValueError: There are no features that could be computed once.
    """
    posterior.to((fabric or Fabric(accelerator="auto", devices=1)).device)
    name = _entrance(posterior)
    generators = [one for loader in loaders for one in loader_generators(loader)]
    training = posterior.training
    posterior.eval()
    try:
        with random_state_kept(generators), torch.no_grad():
            cached = tuple(_cached(posterior, name, loader) for loader in loaders)
    finally:
        posterior.train(training)
    with posterior.entered_at(name):
        yield cached


def _entrance(posterior: Posterior[Any]) -> str:
    """The name of the module that has all trained parameters; everything before it is constant."""
    names = list(posterior.weights.shapes)
    name = names[0].rpartition(".")[0]
    while name and not all(one.startswith(f"{name}.") for one in names):
        name = name.rpartition(".")[0]
    remedy = "Choose one module with bayesian= and pass freeze_rest=True to the method."
    if not name:
        shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        raise ValueError(
            f"no single module of the network has all parameters that are trained ({shown}), so "
            f"nothing before it could be computed once. {remedy}"
        )
    if posterior.needs_reference():
        raise ValueError(
            f"module {name!r} has batch norm that is trained. Its statistics are computed from the "
            f"network's inputs in evaluation, and training would only see features. {remedy}"
        )
    training = posterior.training
    changing = [
        one or "the network itself"
        for one, module in posterior.train().network.named_modules()
        if module.training and one != name and not one.startswith(f"{name}.")
    ]
    posterior.train(training)
    if changing:
        raise ValueError(
            f"{', '.join(changing[:6])} may compute something else in training than in evaluation "
            f"(batch norm, dropout), so its features cannot be computed once. {remedy}"
        )
    return name


def _cached(posterior: Posterior[Any], name: str, loader: Iterable[Any]) -> Iterable[Any]:
    """A loader that gives features where the given one gives inputs."""
    draws = posterior.sample(2)
    if not isinstance(loader, DataLoader):
        return _batches(posterior, name, draws, loader)
    known = cast("DataLoader[Any]", loader)
    if isinstance(known.dataset, IterableDataset) or known.batch_sampler is None:
        return _batches(posterior, name, draws, known)
    in_order = DataLoader[Any](
        known.dataset,
        batch_size=known.batch_size or 256,
        collate_fn=known.collate_fn,
        num_workers=known.num_workers,
    )
    first, again = (_checked(posterior, name, draws, next(iter(in_order))) for _ in range(2))
    if not torch.equal(first.inputs, again.inputs):
        raise ValueError(
            "the loader's dataset gives other inputs every time (random augmentation?), so its "
            "features cannot be computed once. Train without cached_features, or give it a loader "
            "without augmentation."
        )
    data = _Features(_batches(posterior, name, draws, in_order))
    if known.batch_size is None:
        return DataLoader(data, batch_sampler=known.batch_sampler, collate_fn=_as_it_is)
    return DataLoader(
        data,
        batch_size=known.batch_size,
        sampler=known.sampler,
        drop_last=known.drop_last,
        generator=known.generator,
        collate_fn=_as_it_is,
    )


def _batches(
    posterior: Posterior[Any], name: str, draws: Samples, loader: Iterable[Any]
) -> list[Batch]:
    """All batches of a loader with features in place of inputs; the first one is checked."""
    batches: list[Batch] = []
    for batch in loader:
        take = _taken if batches else _checked
        batches.append(take(posterior, name, draws, batch))
    return batches


def _checked(posterior: Posterior[Any], name: str, draws: Samples, batch: Any) -> Batch:
    """Like ``_taken``, and raises if other weights would need other features."""
    torch.manual_seed(0)  # for a last module that is random by itself
    inputs = move(as_batch(batch).inputs, posterior.device)
    expected = posterior(inputs, draws, execution=Loop())
    taken = _taken(posterior, name, draws, batch)
    if len(taken.inputs) != len(taken.targets):
        raise ValueError(
            f"module {name!r} is called with {len(taken.inputs)} features for a batch of "
            f"{len(taken.targets)} examples, so features cannot be told apart by example."
        )
    torch.manual_seed(0)
    with posterior.entered_at(name):
        outputs = posterior(taken.inputs.to(posterior.device), draws, execution=Loop())
    if outputs.shape != expected.shape or not torch.allclose(
        outputs, expected, rtol=1e-3, atol=1e-4
    ):
        raise ValueError(
            f"the outputs of module {name!r} for its features are not those of the network: "
            "something comes after it, or the features depend on Bayesian weights too. Train "
            "without cached_features."
        )
    return taken


def _taken(posterior: Posterior[Any], name: str, draws: Samples, batch: Any) -> Batch:
    """The batch on the CPU, with features in place of the network's inputs.

    Features are what the network calls the module with.
    """
    seen: list[Tensor] = []

    def note(module: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        if named or len(given) != 1 or not isinstance(given[0], Tensor):
            raise ValueError(f"module {name!r} is not called with exactly one tensor.")
        seen.append(given[0].cpu())

    inputs, targets, weights = as_batch(batch)
    module = posterior.network.get_submodule(name)
    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        posterior(move(inputs, posterior.device), draws.take(slice(1)), execution=Loop())
    finally:
        handle.remove()
    if len(seen) != 1:
        raise ValueError(f"the network calls module {name!r} {len(seen)} times, not once.")
    return Batch(seen[0], targets.cpu(), None if weights is None else weights.cpu())


class _Features(Dataset[Any]):
    """Features and targets of all examples, fetched by the batch."""

    def __init__(self, batches: Sequence[Batch]):
        self.inputs: Inputs = torch.cat([one.inputs for one in batches])
        self.targets = torch.cat([one.targets for one in batches])
        weights = [one.weights for one in batches if one.weights is not None]
        self.weights = torch.cat(weights) if weights else None

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: list[int]) -> Batch:
        """The batch of these examples."""
        weights = None if self.weights is None else self.weights[indices]
        return Batch(self.inputs[indices], self.targets[indices], weights)


def _as_it_is(batch: Any) -> Any:
    return batch
