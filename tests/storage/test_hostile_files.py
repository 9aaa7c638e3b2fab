"""Files that were tampered with, checksum and all: our own error, at once, and no code."""

import copy
import json
import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bbh
from bbh import divergences, generators, likelihoods, methods, priors
from bbh.storage import files as storage
from bbh.storage.files import StorageError
from scenarios import BatchNormNet, mlp

Categorical = likelihoods.Categorical


def with_reference():
    posterior = methods.bayes_by_backprop(BatchNormNet(), Categorical())
    posterior.keep_reference(torch.randn(4, 1, 6, 6))
    return posterior


CRITIC = divergences.Adversarial(hidden=(4,))
MADE = {
    "ensemble": lambda: methods.deep_ensemble(mlp(), Categorical(), num_members=2),
    "swag": lambda: methods.stochastic_weight_averaging(mlp(), Categorical()),
    "flows": lambda: methods.multiplicative_normalizing_flows(mlp(), Categorical((1.0, 2.0, 1.0))),
    "hypernet": lambda: methods.bayes_by_hypernet(
        mlp(), Categorical(), generator=generators.Sliced(hidden=(4,)), divergence=CRITIC
    ),
    "centred": lambda: methods.bayes_by_backprop(
        mlp(), Categorical(), priors.Centred.on(mlp(), priors.Laplace())
    ),
    "batch norm": with_reference,
}
JUNK = (None, "", -1, 1.5, 10**30, float("nan"), [], {}, [[]], {"type": "Normal", "bad": 1})
JUNK += ({"tuple": 3}, {"mapping": []}, {"enum": [], "value": 1}, {"tensor": []}, {"custom": "x"})


@pytest.fixture
def stored(tmp_path):
    """A function that changes the description and the tensors of a posterior's file, and signs."""
    path = tmp_path / "file"

    def change(posterior, change_description=None, change_tensors=None):
        bbh.save(posterior, path)
        with storage.safe_open(path, framework="pt") as file:
            description = json.loads(file.metadata()["bbh"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        description.pop("digest")
        if change_description is not None:
            description = change_description(description)
        if change_tensors is not None:
            change_tensors(tensors)
        description["digest"] = storage._digest(description, tensors)
        save_file(tensors, path, metadata={"bbh": json.dumps(description)})
        return path

    return change


def network_of(posterior):
    return BatchNormNet() if isinstance(posterior.network, BatchNormNet) else mlp()


def places(node, here=()):
    """All places in a description: keys and indices to go along."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    for key, value in node.items() if isinstance(node, dict) else ():
        yield (*here, key)
        yield from places(value, (*here, key))


@pytest.mark.parametrize("made", MADE)
def test_a_changed_description_is_refused_or_loads(stored, made):
    """Never another error, whatever takes the place of any part of it."""
    posterior, choose = MADE[made](), random.Random(0)

    def change(description):
        changed = copy.deepcopy(description)
        *way, last = choose.choice(list(places(changed)))
        parent = changed
        for key in way:
            parent = parent[key]
        if choose.random() < 0.2:
            del parent[last]
        else:
            parent[last] = choose.choice(JUNK)
        return changed

    refused = 0
    for _ in range(60):
        path = stored(posterior, change)
        try:
            bbh.load(path, network_of(posterior))
        except StorageError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("made", "way"),
    [
        ("ensemble", ("num_members",)),
        ("swag", ("rank",)),
        ("flows", ("num_flows",)),
        ("hypernet", ("noise", "dim")),
        ("hypernet", ("generator", "hidden", "tuple", 0)),
        ("hypernet", ("divergence", "hidden", "tuple", 0)),
    ],
)
def test_sizes_are_bounded_by_what_the_file_holds(stored, made, way):
    def change(description):
        parent = description["arguments"]
        for key in way[:-1]:
            parent = parent[key]
        parent[way[-1]] = 10**7
        return description

    path = stored(MADE[made](), change)
    with pytest.raises(StorageError, match=r"far larger than what it holds|this machine has"):
        bbh.load(path, mlp())


def test_deep_nesting(stored):
    nested = []
    for _ in range(900):
        nested = [nested]
    path = stored(MADE["swag"](), lambda description: {**description, "prior": nested})
    with pytest.raises(StorageError, match="describes no posterior"):
        bbh.load(path, mlp())


class TestWeights:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_that_are_not_finite(self, stored, value):
        posterior = MADE["ensemble"]()
        name = next(iter(posterior.state_dict()))
        path = stored(posterior, change_tensors=lambda tensors: tensors[name][0].fill_(value))
        with pytest.raises(StorageError, match=f"not finite: {name}"):
            bbh.load(path, mlp())

    def test_that_are_not_finite_are_not_saved(self, tmp_path):
        posterior = MADE["ensemble"]()
        with torch.no_grad():
            next(posterior.parameters()).fill_(torch.nan)
        with pytest.raises(StorageError, match="these weights are not finite: weights"):
            bbh.save(posterior, tmp_path / "file")
        assert not (tmp_path / "file").exists()

    @pytest.mark.parametrize("kind", [torch.int32, torch.bool, torch.complex64, torch.float64])
    def test_of_another_type(self, stored, kind):
        posterior = MADE["ensemble"]()
        name = next(iter(posterior.state_dict()))
        path = stored(
            posterior, change_tensors=lambda tensors: tensors.update({name: tensors[name].to(kind)})
        )
        with pytest.raises(StorageError, match=r"where torch\.float32 belongs"):
            bbh.load(path, mlp())

    def test_a_posterior_converted_as_a_whole(self, tmp_path):
        bbh.save(MADE["ensemble"]().double(), tmp_path / "file")
        read = bbh.load(tmp_path / "file", mlp())
        assert {one.dtype for one in read.parameters()} == {torch.float64}

    def test_a_mask_may_be_infinite(self, tmp_path):
        class Masked(nn.Linear):
            def __init__(self):
                super().__init__(4, 3)
                self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))

        for method in (methods.maximum_a_posteriori, methods.deep_ensemble):
            bbh.save(method(Masked(), Categorical()), tmp_path / "file")
            bbh.load(tmp_path / "file", Masked())


@pytest.mark.parametrize("text", [b"", b"[", b"[3]", b'[{"tensor": 7}]', b'[{"tuple": 3}]'])
def test_reference_inputs_that_are_arranged_wrongly(stored, text):
    def change(tensors):
        (name,) = [one for one in tensors if one.startswith("reference.") and "0" not in one]
        tensors[name] = torch.tensor(list(text), dtype=torch.uint8)

    path = stored(with_reference(), change_tensors=change)
    with pytest.raises(StorageError, match="describes no posterior"):
        bbh.load(path, BatchNormNet())
