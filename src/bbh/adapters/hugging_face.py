"""A Trainer of Hugging Face that trains a posterior over a model instead of the model."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from bbh import checks
from bbh.adapters.evaluating import EvaluationPass
from bbh.annealing import Schedule
from bbh.batches import Batch, as_batch, inputs_of
from bbh.objective import FreeEnergy, check_settings, free_energy
from bbh.posterior import Posterior
from bbh.predictive import ClassPredictive, Predictive
from bbh.training.arguments import as_schedule
from bbh.training.defaults import default_beta
from bbh.training.random_numbers import loader_generators
from bbh.training.reference import EXAMPLES, ReferenceKeeper
from bbh.training.targets import prepare_targets
from bbh.training.verdicts import DivergedError

try:
    from accelerate.utils import broadcast_object_list
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "transformers and accelerate are not installed: "
        "pip install 'bayes-by-hypernet[huggingface]'."
    ) from error


class BayesianTrainer(Trainer):
    """The ``Trainer`` of transformers for a posterior: its loss is the free energy.

    Everything else is the Trainer's, set by its ``TrainingArguments``: optimizer, learning rate and
    its schedule, precision, accumulation, processes, checkpoints, logging. Mind that its learning
    rate of 5e-5 is made for fine-tuning whole models: ``bbh.fit`` takes 1e-3 or more.

    Evaluation averages predictions over weight draws, the same for the whole data set. It reports
    the likelihood's metrics (``eval_nll``, ``eval_error``, …). ``compute_metrics`` and ``predict``
    get the logarithm of averaged probabilities as logits, or the means of a regression.

    Args:
        posterior: A posterior over a model, trained in place.
        args: ``TrainingArguments``.
        num_data: N, the number of training examples; None takes the length of ``train_dataset``.
        beta: Weight of the complexity: a number or a schedule, see ``bbh.fit``; None takes the
            method's own.
        temperature: Constant factor on the complexity; None takes the method's own, see
            ``bbh.fit``.
        num_samples: The number of weight draws per step; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number.
        prediction_samples: The number of weight draws for evaluation and prediction.
        options: Further arguments of ``Trainer``, such as ``train_dataset``, ``eval_dataset``,
            ``data_collator`` and ``callbacks``.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        args: Any = None,
        *,
        num_data: int | None = None,
        beta: float | Schedule | None = None,
        temperature: float | None = None,
        num_samples: int | None = None,
        likelihood_samples: int | None = None,
        prediction_samples: int = 100,
        **options: Any,
    ):
        checks.instance("posterior", posterior, Posterior, "make one with bbh.methods")
        if posterior.weights.auxiliary_steps or posterior.weights.pretraining_steps:
            raise ValueError(
                "this posterior trains helper networks in steps of their own, which the Trainer "
                "does not take: use bbh.fit, or bbh.adapters.LightningPosterior."
            )
        checks.whole("prediction_samples", prediction_samples, 1, "draw at least one")
        if num_data is None and hasattr(options.get("train_dataset"), "__len__"):
            num_data = len(options["train_dataset"])
        settings: dict[str, Any] = {
            "num_data": num_data,
            "temperature": temperature,
            "num_samples": num_samples,
            "likelihood_samples": likelihood_samples,
        }
        check_settings(
            posterior, **(settings if num_data is not None else settings | {"num_data": 1})
        )
        if beta is not None:
            as_schedule(beta)  # raises for what is none
        super().__init__(cast(Any, _Objective(posterior, settings)), args, **options)
        self.posterior = posterior
        self.num_data = num_data
        self.beta = beta
        self.prediction_samples = prediction_samples
        if self.args.label_names is None:
            self.label_names = ["labels"]
        # The Trainer drops columns of the data that the model does not take.
        taken = inspect.signature(posterior.network.forward).parameters
        self._signature_columns = [*taken, "label", "label_ids", *self.label_names]
        self._keeper = ReferenceKeeper(posterior, EXAMPLES, done=bool(posterior.reference))
        self._pass: EvaluationPass | None = None
        self.add_callback(_EndOfEpoch(self))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, after learning the units of a regression's targets."""
        if self.num_data is None:
            raise ValueError(
                "the training set has no length. Pass num_data=, the number of training examples."
            )
        loader = self.get_train_dataloader()
        order = loader_generators(loader)
        prepare_targets(self.posterior.likelihood, loader, order, _broadcast)
        return super().train(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The free energy of a batch."""
        self._keeper.see(inputs)
        energy: FreeEnergy = model(as_batch(inputs), self._beta_now())
        for name in ("nll", "complexity", "total"):
            value = float(getattr(energy, name).detach())
            if not math.isfinite(value):
                raise DivergedError(name, self.state.global_step + 1, value)
        return (energy.total, energy._asdict()) if return_outputs else energy.total

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The Trainer's loop, with the same draws for all batches and more metrics."""
        self._keeper.hand_over(_broadcast)
        self._pass = EvaluationPass(self.posterior, self.prediction_samples)
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )
        metrics = cast(dict[str, float], output.metrics)
        for name, value in self._pass.metrics().items():
            metrics.setdefault(f"{metric_key_prefix}_{name}", value)
        self._pass = None
        return output

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """NLL, averaged prediction and labels of a batch."""
        assert self._pass is not None
        inputs = cast(dict[str, Any], self._prepare_inputs(inputs))
        predictive = self._pass.predictive(inputs_of(inputs))
        outputs = _outputs(predictive)
        if "labels" not in inputs:
            return None, outputs, None
        targets = as_batch(inputs).targets
        self._pass.add(predictive, targets)
        metrics = self.posterior.likelihood.metrics(predictive, targets)
        nll = torch.tensor(metrics["nll"], device=outputs.device)
        return (nll, None, None) if prediction_loss_only else (nll, outputs, targets)

    def end_epoch(self) -> None:
        """Keeps inputs of the first epoch for batch norm, and collects the epoch's weights."""
        self._keeper.end_epoch(_broadcast)
        self.posterior.weights.end_epoch()

    def _beta_now(self) -> float:
        if self.beta is not None:
            return as_schedule(self.beta)(float(self.state.epoch or 0.0))
        # The method's own schedule, in units of the whole training.
        schedule = as_schedule(default_beta(self.posterior.weights.training_defaults, 1.0))
        return schedule(self.state.global_step / max(1, self.state.max_steps))


class _Objective(nn.Module):
    """The free energy as the forward pass of a module, which the Trainer can distribute."""

    # The loss is a mean over the batch, whatever the number of its items.
    accepts_loss_kwargs = False

    def __init__(self, posterior: Posterior[Any], settings: Mapping[str, Any]):
        super().__init__()
        self.posterior = posterior
        self.settings = dict(settings)

    def forward(self, batch: Batch, beta: float) -> FreeEnergy:
        """The free energy of a batch."""
        return free_energy(self.posterior, batch, beta=beta, **self.settings)


class _EndOfEpoch(TrainerCallback):
    """Tells the Trainer about the end of an epoch, which comes before its evaluation."""

    def __init__(self, trainer: BayesianTrainer):
        self._trainer = trainer

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """The weights of this epoch are final."""
        self._trainer.end_epoch()


def _broadcast(known: Any) -> Any:
    """An object of the first process, in all processes."""
    return broadcast_object_list([known])[0]


def _outputs(predictive: Predictive) -> Tensor:
    """Logits whose softmax (or sigmoid) is the averaged prediction; a regression's means."""
    if not isinstance(predictive, ClassPredictive):
        return predictive.mean
    mean = predictive.mean.clamp(min=torch.finfo(predictive.mean.dtype).tiny)
    binary = mean.shape == predictive.entropy.shape  # yes or no for each output
    return mean.logit(eps=1e-7) if binary else mean.log()
