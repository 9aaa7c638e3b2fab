"""Checks of the arguments of ``fit`` that no other part of the library checks by itself."""

from numbers import Real

from torch.optim import Optimizer

from bbh import checks
from bbh.annealing import Schedule
from bbh.batches import check_loader
from bbh.posterior import Posterior

_MAKE_OPTIMIZER = "lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
_MAKE_SCHEDULER = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"


def check_arguments(
    posterior: object,
    train_loader: object,
    validation_loader: object,
    *,
    epochs: object,
    average_epochs: object,
    batch_norm_examples: object,
    learning_rate: object,
    optimizer: object,
    scheduler: object,
) -> None:
    """Raises for the first argument that cannot work."""
    checks.instance("posterior", posterior, Posterior, "make a posterior with one of bbh.methods")
    check_loader("train_loader", train_loader)
    if validation_loader is not None:
        check_loader("validation", validation_loader)
    checks.whole("epochs", epochs, 1, "train for at least one")
    checks.whole("average_epochs", average_epochs, 0, "average over 0 epochs or more")
    checks.whole("batch_norm_examples", batch_norm_examples, 0, "keep 0 examples or more")
    if learning_rate is not None:
        checks.number("learning_rate", learning_rate, positive=True)
    if isinstance(optimizer, Optimizer):
        raise TypeError(
            "optimizer= takes a function that makes one, since the parameters may move to another "
            f"device first: optimizer={_MAKE_OPTIMIZER}."
        )
    if optimizer is not None:
        checks.function("optimizer", optimizer, _MAKE_OPTIMIZER)
    if scheduler is not None:
        checks.function("scheduler", scheduler, _MAKE_SCHEDULER)


def as_schedule(beta: float | Schedule) -> Schedule:
    """A number or function as a schedule that checks every value it gives."""
    if not callable(beta):
        example = "give a number, or a schedule such as bbh.Linear(5, 20)"
        checks.instance("beta", beta, Real, example)
        checks.number("beta", beta)
        constant = float(beta)
        return lambda _: constant

    def checked(epoch: float) -> float:
        value = float(beta(epoch))
        checks.number(f"beta({epoch:g})", value)
        return value

    return checked
