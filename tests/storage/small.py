"""Posteriors to store, classes that no file can hold, and ways to look into files."""

import json
import struct
from dataclasses import fields, is_dataclass
from enum import StrEnum

import torch

from bbh import generators, likelihoods, methods, priors
from scenarios import mlp

Categorical = likelihoods.Categorical
SMALL = generators.Sliced(hidden=(4,))


class OwnPrior(priors.ElementwisePrior):
    """A prior that a file cannot hold."""

    def distribution(self, like):
        return torch.distributions.Cauchy(like.new_tensor(0.0), like.new_tensor(1.0))


class OwnInitialization(generators.Glorot):
    """An initialisation that a file cannot hold."""


def posterior_of(network=None, **options):
    return methods.bayes_by_backprop(network or mlp(), Categorical(), **options)


def read(path):
    """The JSON header, the position of the data, and all bytes of a safetensors file."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), 8 + length, whole


def same(first, second):
    """Equality of values, with likelihoods (modules, which compare by identity) by their fields."""
    if is_dataclass(first) and not isinstance(first, type):
        return type(first) is type(second) and all(
            same(getattr(first, field.name), getattr(second, field.name))
            for field in fields(first)
            if field.init
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[k], second[k]) for k in first)
    if isinstance(first, StrEnum):
        return first is second
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return type(first) is type(second) and first == second
