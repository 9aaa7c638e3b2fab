"""The list of all methods, used by storage, by the contract tests and by the benchmark."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch import nn

from bbh import checks
from bbh.divergences import Divergence
from bbh.execution import Execution
from bbh.generators import Generator
from bbh.likelihoods import Likelihood
from bbh.noise import GaussianNoise
from bbh.posterior import AdversarialTraining, Posterior, Recipe
from bbh.priors import Prior

Method = Callable[..., Posterior[Any]]
SomeMethod = TypeVar("SomeMethod", bound=Method)

_METHODS: dict[str, Method] = {}
# Arguments that are left out of a recipe: the user passes them again when loading a posterior, or
# they are stored separately.
_NOT_IN_RECIPE = {"network", "likelihood", "prior", "forward", "execution"}
# Descriptions of the arguments that all methods share, to put before and after a method's own.
_BEFORE = {
    "network": "Any ``nn.Module``; it is read, never changed.",
    "likelihood": "How targets arise from the network's outputs; see ``bbh.likelihoods``.",
    "prior": "Distribution of the Bayesian weights before the data; see ``bbh.priors``.",
}
_AFTER = {
    "bayesian": "Which parameters get a distribution: names, module names or glob patterns, or a\n"
    "        predicate of name and tensor. The others are point estimates. By default all that\n"
    "        are trainable, except those of normalisation layers.",
    "freeze_rest": "Keep everything else as it is in a trained network: parameters that are not\n"
    "        Bayesian are not trained, and modules that own no Bayesian parameter are always in\n"
    "        eval mode, so that batch norm keeps its statistics and dropout is off.",
    "forward": "How to call the network, if not as ``network(inputs)``.",
    "execution": "How weight draws are put through the network: ``bbh.Loop()`` one by one,\n"
    "        ``bbh.Vmap()`` all at once; None takes the faster one that works.",
}

# What arguments of these names must be, in whichever method they occur: a class and an example.
_KINDS: dict[str, tuple[type[Any], str]] = {
    "network": (nn.Module, "a torch.nn.Module, e.g. torch.nn.Linear(2, 1)"),
    "likelihood": (Likelihood, "an object of bbh.likelihoods, e.g. Categorical()"),
    "prior": (Prior, "an object of bbh.priors, e.g. Normal(1.0)"),
    "generator": (Generator, "an object of bbh.generators, e.g. LayerWise()"),
    "noise": (GaussianNoise, "bbh.GaussianNoise(dim=…)"),
    "divergence": (Divergence, "an object of bbh.divergences, e.g. NearestNeighbour()"),
    "adversarial": (AdversarialTraining, "bbh.AdversarialTraining(…)"),
    "execution": (Execution, "bbh.Loop() or bbh.Vmap()"),
}
_COUNTS = {
    "num_samples": "draw at least one",
    "num_members": "take at least one member",
}


def register(constructor: SomeMethod) -> SomeMethod:
    """Makes a function ``(network, likelihood, prior, …) -> Posterior`` a method of the library.

    A posterior made by the function remembers the arguments, including the values that the
    function chose for arguments left open, so the posterior can be saved and loaded. Descriptions
    of the arguments that all methods share are added to the function's docstring. A function may
    have ``**arguments`` that it passes on to another method: they are stored by their names.
    """
    signature = inspect.signature(constructor)
    _check(constructor, signature)

    @functools.wraps(constructor)
    def method(*arguments: Any, **options: Any) -> Posterior[Any]:
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{constructor.__name__}: {error}.") from None
        bound.apply_defaults()
        _check_arguments(bound.arguments, signature.parameters)
        posterior = constructor(*arguments, **options)
        given = _to_store(bound)
        chosen = {name: one for name, one in posterior.chosen.items() if name in given}
        posterior.recipe = Recipe(constructor.__name__, given | chosen)
        return posterior

    method.__doc__ = _described(inspect.getdoc(constructor) or "", signature.parameters)
    _METHODS[constructor.__name__] = method
    return cast(SomeMethod, method)


def registered() -> dict[str, Method]:
    """All methods by name, in the order in which they were registered."""
    return dict(_METHODS)


def _to_store(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments that belong into a recipe, with those in ``**arguments`` by their own names."""
    free = {name for name, one in bound.signature.parameters.items() if one.kind is one.VAR_KEYWORD}
    named = bound.arguments | bound.kwargs
    return {name: value for name, value in named.items() if name not in _NOT_IN_RECIPE | free}


def _check(constructor: Method, signature: inspect.Signature) -> None:
    """Raises for a function that ``bbh.load`` could not call, and for a name that is taken."""
    name, parameters = constructor.__name__, signature.parameters
    if missing := _NOT_IN_RECIPE - parameters.keys():
        raise TypeError(f"the method {name} lacks the arguments {', '.join(sorted(missing))}.")
    if any(one.kind is one.VAR_POSITIONAL for one in parameters.values()):
        raise TypeError(
            f"the method {name} must name all its arguments: a file stores them by name."
        )
    known = _METHODS.get(name)
    # A notebook's cell or a reloaded module may define its own method again.
    if known is not None and known.__module__ != constructor.__module__:
        raise ValueError(
            f"there is a method {name} already, in {known.__module__}. Choose another name: files "
            "name the method that reads them."
        )


def _check_arguments(
    arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Raises for an argument of the wrong kind, such as a class where an object is needed."""
    for name, value in arguments.items():
        if value is parameters[name].default:
            continue
        if name in _KINDS:
            kind, example = _KINDS[name]
            checks.instance(name, value, kind, f"pass {example}")
        if name in _COUNTS:
            checks.whole(name, value, 1, _COUNTS[name])


def _described(own: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """A method's docstring, with the shared arguments added before and after its own."""
    text, _, arguments = own.partition("\n\nArgs:\n")
    before, after = (
        [
            f"    {name}: {what}"
            for name, what in shared.items()
            if name in parameters and f"    {name}: " not in own
        ]
        for shared in (_BEFORE, _AFTER)
    )
    return "\n".join([f"{text}\n\nArgs:", *before, *arguments.splitlines(), *after])
