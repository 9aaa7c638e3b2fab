"""A posterior as a LightningModule, for Lightning's Trainer to train, validate, test, predict."""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Adam

from bbh import checks
from bbh.adapters import lightning_checkpoints
from bbh.adapters.evaluating import EvaluationPass
from bbh.annealing import Schedule
from bbh.batches import Batch, Inputs, as_batch, count, inputs_of, move, num_data_of
from bbh.objective import (
    FreeEnergy,
    auxiliary_loss,
    check_settings,
    free_energy,
    own_temperature,
)
from bbh.posterior import Posterior
from bbh.prediction import predict
from bbh.predictive import Predictive
from bbh.training.arguments import as_schedule
from bbh.training.defaults import cooling, default_beta, rated_groups
from bbh.training.random_numbers import draw_differently, loader_generators
from bbh.training.reference import EXAMPLES, ReferenceKeeper
from bbh.training.settings import Settings, objective_settings
from bbh.training.targets import prepare_targets
from bbh.training.verdicts import STATISTICS, Before, DivergedError, HostVerdict

try:
    from lightning.pytorch import LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "Lightning is not installed: pip install 'bayes-by-hypernet[lightning]'."
    ) from error


@dataclass(frozen=True)
class TrainerProcesses:
    """The processes of a Trainer, as the library asks about them.

    Attributes:
        trainer: The Trainer.
    """

    trainer: Trainer

    @property
    def world_size(self) -> int:
        """How many there are."""
        return self.trainer.world_size

    @property
    def global_rank(self) -> int:
        """The number of this one."""
        return self.trainer.global_rank

    @property
    def device(self) -> torch.device:
        """The device of this one."""
        return self.trainer.strategy.root_device

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What one of them passes, in all of them."""
        return self.trainer.strategy.broadcast(obj, src)


class LightningPosterior(LightningModule):
    """A posterior for Lightning's ``Trainer``, which trains it as ``bbh.fit`` does.

    The objective, its defaults (learning rate, annealing of the complexity, falling rate at the
    end), targets that are standardised and inputs that are kept for batch norm are those of
    ``fit``. Devices, precision, accumulation, clipping, checkpoints and loggers are Lightning's. To
    choose another optimizer or schedule, override ``configure_optimizers`` in a subclass.

    Validation and testing log the likelihood's metrics over the whole data set as ``val_nll``,
    ``val_error``, … and ``test_…``, from averaged predictions; with several processes they are
    means over processes. ``predict`` gives a ``Predictive`` for each batch; join them with
    ``Predictive.joined``. Checkpoints also hold the states of every process's random generators, so
    that a resumed run goes on with the draws of an uninterrupted one. Processes that were seeded
    alike are seeded anew, all but the first, so that each draws weights of its own.

    Methods that train helper networks (the divergence ``Adversarial``) take steps of their own
    before each step, so they use manual optimisation, for which Lightning allows neither
    ``gradient_clip_val`` nor ``accumulate_grad_batches``.

    Args:
        posterior: The posterior, trained in place.
        num_data: N, the number of training examples; None takes the length of the loader's dataset.
        learning_rate: Learning rate of Adam; None takes the method's own.
        beta: Weight of the complexity: a number or a schedule, see ``bbh.fit``; None takes the
            method's own.
        temperature: Constant factor on the complexity; None takes the method's own, see
            ``bbh.fit``.
        num_samples: The number of weight draws per step; None takes the method's own number.
        likelihood_samples: How many of these draws enter the likelihood; None takes the method's
            own number.
        validation_samples: The number of weight draws for validation.
        prediction_samples: The number of weight draws for testing and predicting.
        batch_norm_examples: As in ``bbh.fit``: how many inputs to keep for batch-norm statistics.
    """

    def __init__(
        self,
        posterior: Posterior[Any],
        *,
        num_data: int | None = None,
        learning_rate: float | None = None,
        beta: float | Schedule | None = None,
        temperature: float | None = None,
        num_samples: int | None = None,
        likelihood_samples: int | None = None,
        validation_samples: int = 10,
        prediction_samples: int = 100,
        batch_norm_examples: int = EXAMPLES,
    ):
        super().__init__()
        checks.instance("posterior", posterior, Posterior, "make one with bbh.methods")
        self._settings: dict[str, Any] = {
            "temperature": temperature,
            "num_samples": num_samples,
            "likelihood_samples": likelihood_samples,
        }
        check_settings(posterior, num_data=1 if num_data is None else num_data, **self._settings)
        if beta is not None:
            as_schedule(beta)  # raises for what is none
        if learning_rate is not None:
            checks.number("learning_rate", learning_rate, positive=True)
        checks.whole("validation_samples", validation_samples, 1, "draw at least one")
        checks.whole("prediction_samples", prediction_samples, 1, "draw at least one")
        self.posterior = posterior
        self.num_data = num_data
        self.learning_rate = learning_rate
        self.beta = beta
        self.validation_samples = validation_samples
        self.prediction_samples = prediction_samples
        self.batch_norm_examples = batch_norm_examples
        self.automatic_optimization = not self._trains_helpers
        self._keeper = ReferenceKeeper(posterior, 0, done=True)
        self._schedule: Schedule = as_schedule(1.0)
        self._pass: EvaluationPass | None = None
        self._before: Before | None = None
        self._made_with: Settings = {}
        self._resumed_from: dict[str, Any] | None = None

    def configure_optimizers(self) -> Any:
        """Adam with the method's learning rate, and the method's schedule for it if it has one."""
        defaults = self.posterior.weights.training_defaults
        rate = self.learning_rate or defaults.learning_rate
        trained = (one for one in self.posterior.parameters() if one.requires_grad)
        optimizer = Adam(rated_groups(self.posterior, rate, trained))
        if not defaults.cooling:
            return optimizer
        steps = self.trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise ValueError(
                "the learning rate falls at the end of training, which the Trainer must know: "
                "give it max_epochs= or max_steps=, or override configure_optimizers."
            )
        schedule = cooling(int(steps), defaults.cooling, optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    # Training

    def on_fit_start(self) -> None:
        """Reads the size of the data, learns targets' units, and prepares for batch norm."""
        if self.trainer.world_size > 1:
            draw_differently(TrainerProcesses(self.trainer))
        self.trainer.fit_loop.setup_data()  # of which there is only one, however often it is called
        loader: Any = self.trainer.train_dataloader
        if self.num_data is None:
            self.num_data = num_data_of(loader)
        if self._settings["temperature"] is None:
            self._settings["temperature"] = own_temperature(self.posterior, self.num_data)
        defaults = self.posterior.weights.training_defaults
        beta = default_beta(defaults, self._epochs()) if self.beta is None else self.beta
        self._schedule = as_schedule(beta)
        prepare_targets(
            self.posterior.likelihood, loader, loader_generators(loader), self._broadcast
        )
        known = bool(self.posterior.reference) and self._resumed
        self._keeper = ReferenceKeeper(self.posterior, self.batch_norm_examples, done=known)
        self._check_settings()

    def on_train_start(self) -> None:
        """Trains helper networks alone, for methods that have them, before the first step."""
        if not self._resumed:
            self._train_helpers(self.posterior.weights.pretraining_steps)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """The free energy of a batch."""
        # Lightning leaves evaluation mode without telling the network's template.
        self.posterior.train()
        self._keeper.see(batch)
        known = move(as_batch(batch), self.posterior.device)
        self._before = Before(self._plain_optimizer, self.posterior.device)
        verdict = HostVerdict(self.trainer.global_step + 1)
        with verdict.undoing(self._before) as before:
            before.keep(self.posterior.statistics())
            self._train_helpers(self.posterior.weights.auxiliary_steps)
            energy = self._energy(known, batch_idx)
            # The total comes last, so that an error names the single term that is not finite.
            names = ("nll", "complexity", "auxiliary", "total")
            terms: dict[str, Tensor] = {name: getattr(energy, name).detach() for name in names}
            running = self.posterior.running_statistics()
            checked = {STATISTICS: get_total_norm(running, math.inf)} if running else {}
            verdict.judge({name: term.float() for name, term in (terms | checked).items()})
        named = {f"train_{name}": term for name, term in terms.items()}
        self.log_dict(named, on_step=False, on_epoch=True, batch_size=count(known.inputs))
        if self.automatic_optimization:
            return energy.total
        self._take_step(energy.total)
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step":
                cast(Any, config.scheduler).step()
        return None

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Raises if the gradient is not finite, before it changes a weight."""
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            return  # it tries larger scales until gradients overflow, and skips those steps itself
        trained = [one for group in optimizer.param_groups for one in group["params"]]
        verdict = HostVerdict(self.trainer.global_step + 1)
        before = self._before or Before(self._plain_optimizer, self.posterior.device)
        with verdict.undoing(before):
            gradients = [one.grad for one in trained if one.grad is not None]
            verdict.judge({"gradient_norm": get_total_norm(gradients, math.inf)})
        if not self.automatic_optimization:  # steps of helper networks come before the network's
            before.keep_trained(trained)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Ends the epoch, if this was its last batch; validation comes after that."""
        self._before = None
        if self.trainer.is_last_batch:
            largest = float(get_total_norm(list(self.posterior.parameters()), math.inf))
            if not math.isfinite(largest):
                raise DivergedError("parameter_norm", self.trainer.global_step, largest)
            self._keeper.end_epoch(self._broadcast if self.trainer.world_size > 1 else None)
            self.posterior.weights.end_epoch()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the states of the random generators, what the run was made with, a checksum."""
        lightning_checkpoints.complete(checkpoint, self._made_with, TrainerProcesses(self.trainer))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks that it is whole; puts the random generators back, if training is to go on."""
        trainer = getattr(self, "_trainer", None)
        lightning_checkpoints.check(checkpoint, self._checkpoint_name)
        if trainer is None or trainer.state.fn != "fit":
            return
        self._resumed_from = checkpoint
        lightning_checkpoints.restore_random_numbers(
            checkpoint, self._checkpoint_name, TrainerProcesses(trainer)
        )

    # Validation, testing, prediction

    def on_validation_epoch_start(self) -> None:
        """Draws the weights for this validation."""
        self._keeper.hand_over(self._broadcast if self.trainer.world_size > 1 else None)
        self._pass = None
        if not self._too_early:
            self._pass = EvaluationPass(self.posterior, self.validation_samples)

    def on_test_epoch_start(self) -> None:
        """Draws the weights for this test."""
        self._pass = EvaluationPass(self.posterior, self.prediction_samples)

    def on_predict_epoch_start(self) -> None:
        """Draws the weights for these predictions."""
        self._pass = EvaluationPass(self.posterior, self.prediction_samples)

    def validation_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Predictive] | None:
        """The predictive distribution for a batch; None before there are inputs for batch norm."""
        return None if self._too_early else self._evaluate(batch, dataloader_idx)

    def test_step(
        self, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> dict[str, Predictive]:
        """The predictive distribution for a batch."""
        return self._evaluate(batch, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Predictive:
        """The predictive distribution for a batch, with the same draws for all batches."""
        return self.predictive(inputs_of(batch))

    def on_validation_epoch_end(self) -> None:
        """Logs ``val_nll``, ``val_error`` and so on."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Logs ``test_nll``, ``test_error`` and so on."""
        self._log_metrics("test")

    def predictive(self, inputs: Inputs) -> Predictive:
        """The predictive distribution with the draws of the present pass over the data."""
        if self._pass is None:
            raise RuntimeError("there are no draws yet: use bbh.predict outside of a Trainer.")
        return self._pass.predictive(inputs)

    def forward(self, inputs: Inputs, num_samples: int | None = None) -> Predictive:
        """The predictive distribution, as ``bbh.predict`` gives it, with new draws."""
        return predict(self.posterior, inputs, num_samples or self.prediction_samples)

    # Private

    @property
    def _trains_helpers(self) -> bool:
        weights = self.posterior.weights
        return bool(weights.auxiliary_steps or weights.pretraining_steps)

    @property
    def _too_early(self) -> bool:
        """Whether batch norm still lacks the inputs that the first epoch will bring."""
        waiting = self.posterior.needs_reference() and not self.posterior.reference
        return waiting and bool(self.trainer.sanity_checking)

    @property
    def _resumed(self) -> bool:
        return self.trainer.ckpt_path is not None

    def _broadcast(self, known: Any) -> Any:
        return self.trainer.strategy.broadcast(known)

    def _epochs(self) -> float:
        """The number of epochs there will be; raises if it is needed and the Trainer has none."""
        limits = [float(self.trainer.max_epochs or -1)]
        batches = self.trainer.num_training_batches / self.trainer.accumulate_grad_batches
        if 0 < batches < math.inf:
            limits.append(self.trainer.max_steps / math.ceil(batches))
        known = [limit for limit in limits if limit > 0]
        if not known and self.posterior.weights.training_defaults.annealing:
            raise ValueError(
                "the weight of the complexity rises over the first epochs, and the Trainer does "
                "not know how many there will be: give it max_epochs=, or pass beta=."
            )
        return min(known, default=1.0)

    def _beta_at(self, batch_idx: int) -> float:
        number = self.trainer.num_training_batches
        within = batch_idx / number if number < math.inf else 0.0
        return self._schedule(self.current_epoch + within)

    @property
    def _plain_optimizer(self) -> Any:
        found = self.trainer.optimizers
        if len(found) != 1:
            raise ValueError("configure_optimizers must return one optimizer.")
        return found[0]

    @property
    def _checkpoint_name(self) -> str:
        trainer = getattr(self, "_trainer", None)
        return str((trainer and trainer.ckpt_path) or "the checkpoint")

    def _check_settings(self) -> None:
        """Remembers what this run is made with; raises if a checkpoint was made otherwise."""
        self._made_with = objective_settings(
            self.posterior,
            self._plain_optimizer,
            self.beta,
            num_data=self.num_data,
            **self._settings,
        )
        if self._resumed_from is not None:
            lightning_checkpoints.check_made_with(
                self._resumed_from, self._checkpoint_name, self._made_with
            )
            self._resumed_from = None

    def _energy(self, batch: Batch, batch_idx: int) -> FreeEnergy:
        assert self.num_data is not None
        beta = self._beta_at(batch_idx)
        return free_energy(
            self.posterior, batch, num_data=self.num_data, beta=beta, **self._settings
        )

    def _train_helpers(self, steps: int) -> None:
        for _ in range(steps):
            self._take_step(auxiliary_loss(self.posterior, self._settings["num_samples"]))

    def _take_step(self, loss: Tensor) -> None:
        """A step of the optimizer, where Lightning takes none by itself."""
        optimizer = cast(Any, self.optimizers())
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def _evaluate(self, batch: Any, dataloader_idx: int) -> dict[str, Predictive]:
        inputs, targets, _ = as_batch(batch)
        found = self.predictive(inputs)
        assert self._pass is not None
        self._pass.add(found, targets, dataloader_idx)
        return {"predictive": found}

    def _log_metrics(self, stage: str) -> None:
        if self._pass is None:
            return
        named = {f"{stage}_{name}": value for name, value in self._pass.metrics().items()}
        self.log_dict(named, sync_dist=self.trainer.world_size > 1)
