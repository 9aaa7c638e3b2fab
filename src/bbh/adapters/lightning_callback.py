"""A Lightning callback that logs how uncertain predictions are, and those of outliers."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from bbh import metrics
from bbh.adapters.lightning import LightningPosterior
from bbh.batches import check_loader, inputs_of
from bbh.predictive import ClassPredictive, Predictive, RegressionPredictive

try:
    from lightning.pytorch import Callback, Trainer
except ImportError as error:
    raise ImportError(
        "Lightning is not installed: pip install 'bayes-by-hypernet[lightning]'."
    ) from error


class UncertaintyCallback(Callback):
    """Logs the mean uncertainty of validation and test examples, beside the module's metrics.

    For classes these are ``val_entropy`` and ``val_mutual_information``, in nats, for regressions
    ``val_total_std`` and ``val_epistemic_std``; ``test_…`` in tests. With a loader of outliers it
    also logs ``val_outlier_auroc_entropy`` and so on: how often an outlier is more uncertain than
    an example of the data, 0.5 if they cannot be told apart.

    Args:
        outliers: Batches of inputs from elsewhere; targets are ignored.
    """

    def __init__(self, outliers: Iterable[Any] | None = None):
        if outliers is not None:
            check_loader("outliers", outliers)
        self.outliers = outliers
        self._found: list[Predictive] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begins anew."""
        _check_module(pl_module)
        self._found = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begins anew."""
        _check_module(pl_module)
        self._found = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Remembers the predictions."""
        self._add(outputs, dataloader_idx)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Remembers the predictions."""
        self._add(outputs, dataloader_idx)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Logs ``val_…``."""
        self._log("val", pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Logs ``test_…``."""
        self._log("test", pl_module)

    def _add(self, outputs: dict[str, Predictive] | None, dataloader_idx: int) -> None:
        # Of several data sets the first one counts.
        if outputs is not None and dataloader_idx == 0:
            self._found.append(outputs["predictive"])

    def _log(self, stage: str, module: LightningPosterior) -> None:
        if not self._found:
            return
        inside = _uncertainties(self._found)
        named = {f"{stage}_{name}": value.mean() for name, value in inside.items()}
        if self.outliers is not None and not module.trainer.sanity_checking:
            found = [module.predictive(inputs_of(batch)) for batch in self.outliers]
            for name, outside in _uncertainties(found).items():
                area = metrics.auroc(inside[name], outside)
                named[f"{stage}_outlier_auroc_{name}"] = torch.tensor(area)
        module.log_dict(named, sync_dist=module.trainer.world_size > 1)
        self._found = []


def _check_module(module: object) -> None:
    if not isinstance(module, LightningPosterior):
        raise TypeError(
            f"UncertaintyCallback reads predictions of a LightningPosterior; this is a "
            f"{type(module).__name__}."
        )


def _uncertainties(parts: list[Predictive]) -> dict[str, Tensor]:
    """Total and epistemic uncertainty of every example, summed over its outputs."""
    names: tuple[str, ...] = ()
    if isinstance(parts[0], ClassPredictive):
        names = ("entropy", "mutual_information")
    elif isinstance(parts[0], RegressionPredictive):
        names = ("total_std", "epistemic_std")
    return {
        name: torch.cat([_per_example(getattr(part, name)) for part in parts]).cpu()
        for name in names
    }


def _per_example(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.dim() > 1 else values
