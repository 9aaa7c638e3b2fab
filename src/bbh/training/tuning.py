"""``tune``: chooses prior scale and temperature on validation data, by successive halving."""

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bbh.files import read_json, write_json
from bbh.posterior import Posterior
from bbh.prediction import evaluate
from bbh.priors import Normal, Prior
from bbh.training.fitting import fit
from bbh.training.options import Checkpoint
from bbh.training.random_numbers import loader_generators, random_state_kept, seed_all
from bbh.training.verdicts import DivergedError

RECORD = "tuning.json"
# Arguments of ``fit`` that ``tune`` sets by itself.
_OWN = ("epochs", "temperature", "checkpoint", "validation")


@dataclass(frozen=True)
class Trial:
    """One setting after some training.

    Attributes:
        scale: Scale of the prior.
        temperature: Factor on the complexity.
        epochs: The number of epochs the setting had been trained for.
        metrics: Metrics on the validation data; empty if training diverged.
    """

    scale: float
    temperature: float
    epochs: int
    metrics: dict[str, float]

    @property
    def nll(self) -> float:
        """The validation NLL, by which settings are compared; infinite if training diverged."""
        nll = self.metrics.get("nll", math.inf)
        return math.inf if math.isnan(nll) else nll


@dataclass(frozen=True)
class Tuned:
    """What ``tune`` found.

    Attributes:
        posterior: The posterior of the best setting, trained for all epochs.
        best: The best setting and its metrics.
        trials: Every setting at every stage, in the order of training.
    """

    posterior: Posterior[Any]
    best: Trial
    trials: list[Trial]


def tune(
    build: Callable[[Prior], Posterior[Any]],
    train_loader: Iterable[Any],
    validation_loader: Iterable[Any],
    *,
    epochs: int,
    scales: Sequence[float] = (0.1, 0.3, 1.0, 3.0),
    temperatures: Sequence[float] = (1.0, 0.1, 0.01),
    prior: Callable[[float], Prior] = Normal,
    num_samples: int = 50,
    seed: int = 0,
    folder: str | Path | None = None,
    **options: Any,
) -> Tuned:
    """Trains a posterior with the prior scale and temperature that suit the validation data best.

    All pairs of a scale and a temperature are trained for a few epochs. The half with the lower
    validation NLL goes on for twice as many in all, and so forth (successive halving): the last two
    are trained for ``epochs``. Twelve pairs take four times as long as one training run.

    Where a method chooses its own schedule in ``fit`` (Bayes by Hypernet: how β rises and the
    learning rate falls), it depends on the number of epochs, which is that of the stage. A setting
    that goes on has therefore been through the schedules of shorter runs, and the result is not
    that of one run of ``epochs``. With ``beta`` and ``scheduler`` among the options, all stages
    follow the same schedule.

    >>> import bbh, torch
    >>> x = torch.randn(40, 2)
    >>> data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=20)
    >>> network, likelihood = torch.nn.Linear(2, 1), bbh.likelihoods.Gaussian()
    >>> tuned = bbh.tune(
    ...     lambda prior: bbh.methods.bayes_by_backprop(network, likelihood, prior),
    ...     loader, loader, epochs=2, scales=[0.1, 1.0], temperatures=[1.0],
    ... )
    >>> len(tuned.trials), tuned.posterior.prior == bbh.priors.Normal(tuned.best.scale)
    (2, True)

    Args:
        build: Makes an untrained posterior with a given prior, by any method.
        train_loader: The data to train on, as for ``bbh.fit``.
        validation_loader: The data to judge by: batches of ``(inputs, targets)``.
        epochs: The number of epochs that the best setting is trained for.
        scales: Scales of the prior to try.
        temperatures: Temperatures to try: factors on the complexity.
        prior: Makes a prior from a scale, e.g. ``bbh.priors.Laplace``.
        num_samples: The number of weight draws for the predictions.
        seed: Every setting is made, trained and judged with this seed. The random state of the
            program is the same afterwards as before.
        folder: Where to keep all numbers (``tuning.json``) and the checkpoints of settings that are
            not yet dropped. An interrupted call that is repeated with the same folder goes on where
            it was, with the same result. None keeps nothing.
        options: Further arguments of ``bbh.fit``, such as ``learning_rate``.

    Raises:
        DivergedError: Training diverged with every setting.
    """
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: train for at least one.")
    for name, values in (("scales", scales), ("temperatures", temperatures)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name}={values!r}: name at least one, and each once.")
        for value in values:
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={values!r}: {value!r} is not positive and finite.")
    if taken := [name for name in _OWN if name in options]:
        raise TypeError(f"tune sets {', '.join(taken)} of fit by itself: leave it out.")
    options = {"progress": False, **options}
    generators = loader_generators(train_loader)
    place = tempfile.TemporaryDirectory() if folder is None else nullcontext(str(folder))
    with place as path, random_state_kept(generators):
        plan = {"scales": [*scales], "temperatures": [*temperatures], "epochs": epochs}
        record = _Record(Path(path), plan | {"num_samples": num_samples, "seed": seed})

        def trained(scale: float, temperature: float, until: int) -> Posterior[Any]:
            """Trains from where this setting's checkpoint is; at once if it has these epochs."""
            seed_all(seed, generators)
            posterior = build(prior(scale))
            checkpoint = Checkpoint(record.checkpoint(scale, temperature), resume=True)
            fit(
                posterior,
                train_loader,
                epochs=until,
                temperature=temperature,
                checkpoint=checkpoint,
                **options,
            )
            return posterior

        def tried(scale: float, temperature: float, until: int) -> Trial:
            """The metrics of a setting, from the record if they are there."""
            if known := record.find(scale, temperature, until):
                return known
            try:
                posterior = trained(scale, temperature, until)
                seed_all(seed, generators)
                metrics = evaluate(posterior, validation_loader, num_samples)
            except DivergedError:
                metrics = {}
            return record.add(Trial(scale, temperature, until, metrics))

        settings = list(product(scales, temperatures))
        stages = max(1, math.ceil(math.log2(len(settings))))
        ranked: list[Trial] = []
        for stage in range(stages):
            until = max(1, epochs >> (stages - 1 - stage))
            ranked = sorted((tried(*one, until) for one in settings), key=lambda one: one.nll)
            if stage < stages - 1:
                ranked, dropped = ranked[: -(len(ranked) // 2)], ranked[-(len(ranked) // 2) :]
                for one in dropped:
                    record.checkpoint(one.scale, one.temperature).unlink(missing_ok=True)
            settings = [(one.scale, one.temperature) for one in ranked]
        # With every setting diverged, this raises the error that was caught before.
        return Tuned(trained(*settings[0], epochs), ranked[0], record.trials)


class _Record:
    """All trials so far, in a folder that outlives the program."""

    def __init__(self, folder: Path, plan: dict[str, Any]):
        self.folder = folder
        self.plan = plan
        self.trials: list[Trial] = []
        if self._path.exists():
            known = read_json(self._path)
            if known["plan"] != plan:
                raise ValueError(
                    f"{self._path} is of another call, with {known['plan']}. Choose another "
                    "folder, or delete this one."
                )
            self.trials = [Trial(**one) for one in known["trials"]]

    def checkpoint(self, scale: float, temperature: float) -> Path:
        """The file that keeps a setting's training state."""
        return self.folder / f"scale-{scale!r}-temperature-{temperature!r}.checkpoint"

    def find(self, scale: float, temperature: float, epochs: int) -> Trial | None:
        """The trial of this setting after this many epochs; None if it has not been made."""
        wanted = (scale, temperature, epochs)
        found = (one for one in self.trials if (one.scale, one.temperature, one.epochs) == wanted)
        return next(found, None)

    def add(self, trial: Trial) -> Trial:
        """Writes a new trial to the file, and returns it."""
        self.trials.append(trial)
        content = {"plan": self.plan, "trials": [asdict(one) for one in self.trials]}
        write_json(self._path, content)
        return trial

    @property
    def _path(self) -> Path:
        return self.folder / RECORD
