"""save and load: what is stored comes back, and what is broken is refused."""

import json
import pickle
import struct
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh import divergences, generators, likelihoods, methods, priors
from bbh.methods import FlowKind
from bbh.per_example import Sampling
from bbh.storage import files as storage
from bbh.storage.descriptions import Custom, decode, encode
from bbh.storage.files import StorageError
from scenarios import BatchNormNet, TwoInputs, mlp

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


def rewrite(path, change):
    """Changes the description inside a file."""
    tensors = {}
    with storage.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        for name in file.keys():  # noqa: SIM118
            tensors[name] = file.get_tensor(name)
    description = json.loads(metadata["bbh"])
    change(description)
    save_file(tensors, path, metadata={"bbh": json.dumps(description)})


def resign(description, path):
    """A checksum that fits, as if this very description had been saved."""
    with storage.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    description.pop("digest")
    description["digest"] = storage._digest(description, tensors)


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


positive = st.floats(1e-6, 1e6)
counts = st.integers(1, 50)
widths = st.lists(counts, min_size=1, max_size=3).map(tuple)
elementwise = st.one_of(
    st.builds(priors.Normal, positive, st.floats(-9, 9)),
    st.builds(priors.Laplace, positive),
    st.builds(priors.StudentT, positive, positive),
    st.builds(
        lambda scales: priors.ScaleMixture(scales, (1 / len(scales),) * len(scales)),
        st.lists(positive, min_size=1, max_size=4).map(tuple),
    ),
)
initializations = st.one_of(
    st.builds(generators.Glorot), st.builds(generators.FromNetwork, positive)
)
generator_fields = {"hidden": widths, "slope": positive, "initialization": initializations}
standardisation = st.one_of(
    st.builds(likelihoods.Standardisation, st.just(3.0), positive),
    st.builds(likelihoods.Standardisation, st.just((0.0, 1.5)), st.just((2.0, 0.1))),
)
standardise = st.booleans() | standardisation
values = st.one_of(
    elementwise,
    st.builds(priors.PerLayer, st.dictionaries(st.text(), elementwise, max_size=3), elementwise),
    st.builds(Categorical, st.none() | st.lists(positive, min_size=1).map(tuple)),
    st.builds(likelihoods.Bernoulli, positive),
    st.builds(likelihoods.Gaussian, positive, st.booleans(), standardise),
    st.builds(likelihoods.Gaussian, standardise=standardise),
    st.builds(likelihoods.HeteroscedasticGaussian, positive, standardise),
    standardisation,
    st.builds(divergences.ClosedForm),
    st.builds(divergences.NearestNeighbour, st.none() | counts, positive),
    st.builds(divergences.JointNearestNeighbour, st.none() | counts, positive),
    st.builds(divergences.NearestNeighbourEntropy, counts, positive),
    st.builds(divergences.JointEntropy, positive),
    st.builds(divergences.Adversarial, widths, counts, counts, counts, st.none() | counts),
    st.builds(generators.LayerWise, **generator_fields),
    st.builds(generators.Sliced, **generator_fields),
    st.builds(generators.Single, **generator_fields, chunk=st.none() | counts),
    st.builds(priors.FanIn, positive),
    st.builds(bbh.GaussianNoise, counts, st.booleans()),
    st.builds(bbh.AdversarialTraining, positive, positive),
    st.sampled_from(FlowKind),
    st.sampled_from(Sampling),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
)
nested = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=5,
)


def same_nested(first, second):
    if isinstance(first, list | tuple):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(same_nested(a, b) for a, b in zip(first, second, strict=True))
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            same_nested(first[name], second[name]) for name in first
        )
    return same(first, second)


class TestDescriptions:
    # Building a value checks its types, at random in long containers: not the test's doing.
    @pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
    @settings(max_examples=150, deadline=None)
    @given(nested)
    def test_round_trip_through_json(self, value):
        assert same_nested(value, decode(json.loads(json.dumps(encode(value)))))

    def test_every_value_class_is_tried_above(self):
        """A class added to the list of known ones must be added to the test."""
        from bbh.storage import descriptions

        tried = {
            "Normal", "Laplace", "StudentT", "ScaleMixture", "PerLayer", "Categorical",
            "Bernoulli", "Gaussian", "HeteroscedasticGaussian", "ClosedForm", "NearestNeighbour",
            "JointNearestNeighbour", "NearestNeighbourEntropy", "JointEntropy", "Adversarial",
            "LayerWise", "Sliced", "Single", "Glorot", "FromNetwork", "GaussianNoise",
            "AdversarialTraining", "Standardisation", "FanIn",
            "Centred",  # below, since its tensors are not JSON
        }  # fmt: skip
        assert set(descriptions._VALUES) == tried
        assert set(descriptions._ENUMS) == {"FlowKind", "Sampling"}

    def test_tensors_are_put_aside(self):
        prior = priors.Centred({"w": torch.randn(3), "b": torch.randn(2)}, priors.Laplace(0.3))
        tensors = {}
        encoded = json.loads(json.dumps(encode(prior, tensors)))
        back = decode(encoded, tensors)
        assert back.prior == prior.prior
        assert list(back.values) == ["w", "b"]
        assert all(torch.equal(back.values[name], prior.values[name]) for name in prior.values)
        with pytest.raises(ValueError, match="is missing"):
            decode(encoded)

    def test_order_of_patterns_survives(self):
        """In PerLayer the first match counts, so {b, a} is not {a, b}."""
        prior = priors.PerLayer({"z*": priors.Laplace(1.0), "*": priors.Normal(2.0)})
        back = decode(json.loads(json.dumps(encode(prior))))
        assert back.of("z.weight") == priors.Laplace(1.0)
        assert list(back.choices) == ["z*", "*"]

    @pytest.mark.parametrize(
        "value",
        [
            OwnPrior(),
            priors.Sampled(lambda n: {}),
            priors.PerLayer({"0.*": OwnPrior()}),
            priors.PerLayer({}, default=OwnPrior()),
            generators.Sliced(initialization=OwnInitialization()),
            [1, (OwnPrior(), 2)],
        ],
        ids=["own", "sampled", "inside a mapping", "as a field", "in a generator", "in a list"],
    )
    def test_own_classes_are_named_wherever_they_are(self, value):
        back = decode(json.loads(json.dumps(encode(value))))
        assert isinstance(back, Custom)
        assert back.name.rpartition(".")[2] in ("OwnPrior", "Sampled", "OwnInitialization")

    def test_own_class_of_a_known_name_is_not_mistaken(self):
        class Normal(priors.Normal):
            pass

        assert isinstance(decode(encode(Normal(2.0))), Custom)

    @pytest.mark.parametrize(
        "encoded",
        [
            {"type": "os.system"},
            {"type": "Unheard"},
            {"type": "Normal", "width": 3.0},
            {"enum": "Sampling", "value": "unheard"},
            {"enum": "Unheard", "value": "weights"},
            {"type": "Normal", "scale": -1.0},
            {},
        ],
    )
    def test_unknown_names_are_refused(self, encoded):
        with pytest.raises(ValueError, match=r".+"):
            decode(encoded)


RECIPES = {
    "map": lambda network: methods.maximum_a_posteriori(
        network,
        Categorical((1.0, 2.0, 0.5)),
        priors.PerLayer({"0.*": priors.Laplace(0.3)}, default=priors.StudentT(4.0, 0.5)),
        bayesian=["0"],
    ),
    "ensemble": lambda network: methods.deep_ensemble(
        network,
        Categorical(),
        priors.Normal(0.3, 0.1),
        num_members=3,
        adversarial=bbh.AdversarialTraining(0.02, 0.3),
    ),
    "ensemble, partial": lambda network: methods.deep_ensemble(
        network, Categorical(), num_members=2, bayesian="2.*"
    ),
    "backprop": lambda network: methods.bayes_by_backprop(
        network,
        Categorical(),
        priors.ScaleMixture((0.1, 2.0), (0.6, 0.4)),
        initial_scale=0.2,
        sampling=Sampling.FLIPOUT,
        divergence=divergences.NearestNeighbourEntropy(2, 1e-3),
        num_samples=7,
        bayesian=lambda name, value: value.dim() > 1,
    ),
    "dropout": lambda network: methods.mc_dropout(
        network, Categorical(), rate=0.2, bayesian=["2.weight"]
    ),
    "dropout, own": lambda network: methods.mc_dropout(network, Categorical()),
    "flows": lambda network: methods.multiplicative_normalizing_flows(
        network,
        Categorical(),
        initial_scale=0.1,
        max_scale=0.2,
        flow=FlowKind.PLANAR,
        num_flows=1,
        sampling=Sampling.WEIGHTS,
    ),
    "hypernet": lambda network: methods.bayes_by_hypernet(
        network,
        Categorical(),
        generator=generators.Single(
            (5, 6), slope=0.3, initialization=generators.Glorot(), chunk=20
        ),
        noise=bbh.GaussianNoise(3, shared=True),
        divergence=divergences.Adversarial((4,), 2, 1, 3, 50),
        num_samples=4,
    ),
    "hypernet, layer-wise": lambda network: methods.bayes_by_hypernet(
        network,
        Categorical(),
        generator=generators.LayerWise((5,), initialization=generators.FromNetwork(0.4)),
        divergence=divergences.NearestNeighbour(3, 1e-2),
        num_samples=3,
    ),
    "hypernet around given weights": lambda network: methods.bayes_by_hypernet(
        network,
        Categorical(),
        priors.Centred.on(network, priors.PerLayer({"0.*": priors.Normal(0.3)})),
        generator=SMALL,
        divergence=divergences.JointEntropy(0.03),
        num_samples=2,
    ),
}


class TestRoundTrip:
    @pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES.keys())
    def test_every_method_with_arguments_of_its_own(self, make, tmp_path):
        network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        posterior = make(network)
        bbh.save(posterior, tmp_path / "file")
        other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        loaded = bbh.load(tmp_path / "file", other)
        assert loaded.recipe.method == posterior.recipe.method
        assert same(loaded.recipe.arguments, posterior.recipe.arguments)
        assert same(loaded.prior, posterior.prior)
        assert same(loaded.likelihood, posterior.likelihood)
        assert loaded.adversarial == posterior.adversarial
        assert loaded.weights.samples_per_step == posterior.weights.samples_per_step
        assert loaded.state_dict().keys() == posterior.state_dict().keys()
        for name, value in posterior.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name
        assert not loaded.training
        # It trains on as if it had never been away.
        batch = torch.randn(6, 4), torch.randint(0, 3, (6,))
        energies = []
        for one in (posterior, loaded):
            torch.manual_seed(4)
            energies.append(bbh.free_energy(one.train(), batch, num_data=6))
            energies[-1].total.backward()
        assert energies[0].total == energies[1].total
        gradients = [[p.grad for p in one.parameters()] for one in (posterior, loaded)]
        for first, second in zip(*gradients, strict=True):
            assert (first is None) == (second is None)
            assert first is None or torch.equal(first, second)

    def test_a_loaded_posterior_saves_the_same_file(self, tmp_path):
        bbh.save(posterior_of(), tmp_path / "first")
        bbh.save(bbh.load(tmp_path / "first", mlp()), tmp_path / "second")
        assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()

    def test_a_loaded_posterior_is_independent_of_its_file(self, tmp_path):
        path = tmp_path / "file"
        posterior = posterior_of()
        bbh.save(posterior, path)
        loaded, length = bbh.load(path, mlp()), len(path.read_bytes())
        with path.open("r+b") as file:  # in place, as a plain copy over it would
            file.write(bytes(length))
        for name, value in posterior.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], value), name

    def test_after_training(self, tmp_path):
        network, inputs = BatchNormNet(), torch.randn(12, 1, 6, 6)
        posterior = methods.deep_ensemble(network, Categorical(), num_members=2)
        loader = DataLoader(TensorDataset(inputs, torch.randint(0, 3, (12,))), batch_size=4)
        bbh.fit(posterior, loader, epochs=1, progress=False)
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", BatchNormNet())
        statistics = loaded.sample(2)["norm.running_mean"]
        assert not torch.equal(statistics[0], statistics[1])  # each member has its own
        assert torch.equal(statistics, posterior.sample(2)["norm.running_mean"])
        assert torch.equal(bbh.predict(loaded, inputs).mean, bbh.predict(posterior, inputs).mean)

    def test_learned_noise_of_the_likelihood(self, tmp_path):
        posterior = methods.bayes_by_backprop(nn.Linear(2, 1), likelihoods.Gaussian(2.0, True))
        with torch.no_grad():
            posterior.likelihood.log_scale.fill_(-1.5)
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", nn.Linear(2, 1))
        assert loaded.likelihood.log_scale.item() == -1.5
        assert loaded.likelihood.log_scale.requires_grad
        assert bbh.predict(loaded, torch.zeros(1, 2)).aleatoric_std.item() == pytest.approx(
            np.exp(-1.5)
        )

    @pytest.mark.parametrize("network_too", [True, False])
    def test_double_precision(self, tmp_path, network_too):
        network, inputs = mlp(), torch.randn(5, 4, dtype=torch.float64)
        posterior = posterior_of(network.double() if network_too else network).double()
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", mlp().double() if network_too else mlp())
        assert all(value.dtype == torch.float64 for value in loaded.parameters())
        predictions = []
        for one in (posterior, loaded):
            torch.manual_seed(3)
            predictions.append(bbh.predict(one, inputs, 4).mean)
        assert predictions[0].dtype == torch.float64
        assert torch.equal(*predictions)

    def test_buffers_of_all_kinds_and_frozen_parameters(self, tmp_path):
        class Kinds(nn.Module):
            def __init__(self, value):
                super().__init__()
                self.layer = nn.Linear(2, 3)
                self.frozen = nn.Parameter(torch.full((3,), value), requires_grad=False)
                self.register_buffer("flag", torch.tensor([True, False, value > 0]))
                self.register_buffer("number", torch.tensor(int(value)))
                self.register_buffer("short", torch.full((3,), value, dtype=torch.bfloat16))
                self.register_buffer("nothing", torch.empty(0))
                self.register_buffer("hidden", torch.full((3,), value), persistent=False)

            def forward(self, inputs):
                return self.layer(inputs) + self.frozen + self.hidden * self.number

        posterior = posterior_of(Kinds(2.0))
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", Kinds(5.0))
        for name in ("frozen", "flag", "number", "short", "nothing", "hidden"):
            assert torch.equal(loaded.constants()[name], posterior.constants()[name]), name
            assert loaded.constants()[name].dtype == posterior.constants()[name].dtype
        assert loaded.constants()["frozen"].tolist() == [2.0] * 3

    def test_random_numbers_are_left_alone(self, tmp_path):
        posterior = methods.deep_ensemble(mlp(), Categorical(), num_members=3)
        bbh.save(posterior, tmp_path / "file")
        network = mlp()
        torch.manual_seed(8)
        np.random.seed(8)  # noqa: NPY002
        expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
        torch.manual_seed(8)
        np.random.seed(8)  # noqa: NPY002
        bbh.load(tmp_path / "file", network)
        assert torch.equal(torch.rand(3), expected[0])
        assert (np.random.rand(3) == expected[1]).all()  # noqa: NPY002

    def test_the_file_tells_where_it_comes_from(self, tmp_path):
        torch.manual_seed(1234)
        bbh.save(posterior_of(), tmp_path / "file")
        description = json.loads(read(tmp_path / "file")[0]["__metadata__"]["bbh"])
        assert description["versions"]["bbh"] == bbh.__version__
        assert description["versions"]["torch"] == torch.__version__
        assert description["seed"] == 1234
        assert description["method"] == "bayes_by_backprop"
        assert description["shapes"]["0.weight"] == [16, 4]

    def test_assembled_by_hand_has_no_recipe(self, tmp_path):
        whole = posterior_of()
        posterior = bbh.Posterior(mlp(), whole.weights, whole.prior, Categorical())
        with pytest.raises(StorageError, match="state_dict"):
            bbh.save(posterior, tmp_path / "file")
        assert list(tmp_path.iterdir()) == []


class TestBrought:
    """What a file cannot hold, the user brings again."""

    def test_prior_known_by_samples(self, tmp_path):
        earlier = posterior_of()
        prior = priors.Sampled(earlier.weights.sample)
        posterior = methods.bayes_by_hypernet(mlp(), Categorical(), prior, generator=SMALL)
        bbh.save(posterior, tmp_path / "file")
        with pytest.raises(StorageError, match=r"prior= .*Sampled.*load\(…, prior=…\)"):
            bbh.load(tmp_path / "file", mlp())
        loaded = bbh.load(tmp_path / "file", mlp(), prior=prior)
        assert loaded.prior is prior
        assert same(loaded.recipe.arguments, posterior.recipe.arguments)

    def test_prior_of_ones_own(self, tmp_path):
        for prior in (OwnPrior(), priors.PerLayer({"0.*": OwnPrior()})):
            posterior = methods.maximum_a_posteriori(mlp(), Categorical(), prior)
            bbh.save(posterior, tmp_path / "file")
            with pytest.raises(StorageError, match=r"own class .*OwnPrior.*prior=…"):
                bbh.load(tmp_path / "file", mlp())
            assert bbh.load(tmp_path / "file", mlp(), prior=prior).prior is prior

    def test_part_of_a_generator(self, tmp_path):
        generator = generators.Sliced((4,), initialization=OwnInitialization())
        posterior = methods.bayes_by_hypernet(mlp(), Categorical(), generator=generator)
        bbh.save(posterior, tmp_path / "file")
        with pytest.raises(StorageError, match=r"OwnInitialization.*generator=…"):
            bbh.load(tmp_path / "file", mlp())
        assert bbh.load(tmp_path / "file", mlp(), generator=generator).recipe is not None

    def test_adapter(self, tmp_path):
        def adapter(network, inputs):
            return network(inputs["a"], inputs["b"])

        inputs = {"a": torch.randn(3, 2), "b": torch.randn(3, 3)}
        posterior = methods.maximum_a_posteriori(TwoInputs(), Categorical(), forward=adapter)
        bbh.save(posterior, tmp_path / "file")
        with pytest.raises(StorageError, match="forward="):
            bbh.load(tmp_path / "file", TwoInputs())
        loaded = bbh.load(tmp_path / "file", TwoInputs(), forward=adapter)
        assert torch.equal(bbh.predict(loaded, inputs).mean, bbh.predict(posterior, inputs).mean)


class TestOtherNetworks:
    def test_what_was_frozen_is_frozen_again(self, tmp_path):
        network = mlp()
        network[0].requires_grad_(False)
        posterior = bbh.methods.bayes_by_backprop(network, Categorical())
        bbh.save(posterior, tmp_path / "file")
        fresh = mlp()
        loaded = bbh.load(tmp_path / "file", fresh)
        assert loaded.weights.shapes == posterior.weights.shapes
        assert all(value.requires_grad for value in fresh.parameters())
        inputs = torch.randn(5, 4)
        samples = posterior.sample(3)
        torch.testing.assert_close(loaded(inputs, samples), posterior.eval()(inputs, samples))

    def test_settings_without_tensors_are_compared(self, tmp_path):
        def network(slope: float) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(slope))

        bbh.save(bbh.methods.bayes_by_backprop(network(0.1), Categorical()), tmp_path / "file")
        with pytest.raises(StorageError, match=r"'1' was .*slope=0\.1.*, is .*slope=0\.2"):
            bbh.load(tmp_path / "file", network(0.2))
        bbh.load(tmp_path / "file", network(0.1))

    @pytest.mark.parametrize(
        ("network", "difference"),
        [
            (
                lambda: nn.Sequential(nn.Linear(4, 17), nn.ReLU(), nn.Linear(17, 3)),
                r"'0.weight' was \[16, 4\].*, is \[17, 4\]",
            ),
            (
                lambda: nn.Sequential(nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Linear(16, 3)),
                r"tensor '0.bias' is missing",
            ),
            (
                lambda: nn.Sequential(
                    nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.BatchNorm1d(3)
                ),
                r"tensor '3.weight' is new",
            ),
            (
                lambda: nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)),
                r"module '1' was ReLU\(\), is Tanh\(\)",
            ),
            (
                lambda: mlp().double(),
                r"'0.weight' was \[16, 4\] torch.float32.*, is .*float64",
            ),
            (
                lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Identity()),
                r"module '3' is new",
            ),
        ],
        ids=["shape", "missing", "new", "activation", "type", "module"],
    )
    def test_every_difference_is_named(self, tmp_path, network, difference):
        bbh.save(posterior_of(), tmp_path / "file")
        with pytest.raises(StorageError, match=difference):
            bbh.load(tmp_path / "file", network())

    def test_many_differences_are_cut_short(self, tmp_path):
        bbh.save(posterior_of(), tmp_path / "file")
        with pytest.raises(StorageError, match="another network") as caught:
            bbh.load(tmp_path / "file", BatchNormNet())
        assert len(str(caught.value)) < 1000


class TestDamage:
    @pytest.fixture
    def path(self, tmp_path):
        bbh.save(posterior_of(nn.Linear(2, 3)), tmp_path / "file")
        return tmp_path / "file"

    def load(self, path):
        return bbh.load(path, nn.Linear(2, 3))

    def test_truncated_anywhere(self, path):
        whole = path.read_bytes()
        for length in [0, 1, 7, 8, 9, *range(10, len(whole) - 1, 23), len(whole) - 1]:
            path.write_bytes(whole[:length])
            with pytest.raises(StorageError):
                self.load(path)
        path.write_bytes(whole)
        self.load(path)

    def test_extended(self, path):
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(StorageError):
            self.load(path)

    def test_every_byte_of_the_data_counts(self, path):
        _, start, whole = read(path)
        assert len(whole) - start == 2 * (6 + 3) * 4  # means and scales of nine weights
        for position in range(start, len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 0x10
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match="checksum"):
                self.load(path)

    def test_flipped_bytes_of_the_header(self, path):
        """Refused, or harmless: a changed space or name's order gives the same posterior."""
        expected = self.load(path).state_dict()
        _, start, whole = read(path)
        refused = 0
        for position in range(0, start, 5):
            damaged = bytearray(whole)
            damaged[position] ^= 0x04
            path.write_bytes(damaged)
            try:
                loaded = self.load(path)
            except StorageError:
                refused += 1
            else:
                for name, value in loaded.state_dict().items():
                    assert torch.equal(value, expected[name])
        assert refused > 0.9 * start / 5

    def test_tensors_without_a_description(self, path):
        save_file({"a": torch.ones(3)}, path)
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)
        save_file({"a": torch.ones(3)}, path, metadata={"bbh": "not json"})
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)
        save_file({"a": torch.ones(3)}, path, metadata={"bbh": "[]"})
        with pytest.raises(StorageError, match="no posterior of bbh"):
            self.load(path)

    def test_a_changed_argument_is_noticed(self, path):
        def widen(description):
            description["prior"]["scale"] = 3.0

        rewrite(path, widen)
        with pytest.raises(StorageError, match="changed after it was saved"):
            self.load(path)

    def test_newer_format_asks_for_an_upgrade(self, path):
        def newer(description):
            description["format"] = storage.FORMAT + 1
            description["versions"]["bbh"] = "99.0"

        rewrite(path, newer)
        with pytest.raises(StorageError, match=r"format 2, written by bbh 99\.0.*Upgrade"):
            self.load(path)

    def test_newer_objects_in_the_same_format(self, path):
        def newer(description):
            description["prior"] = {"type": "Horseshoe", "scale": 1.0}
            description["versions"]["bbh"] = "99.0"
            resign(description, path)

        rewrite(path, newer)
        with pytest.raises(StorageError, match=r"written by bbh 99\.0.*Horseshoe"):
            self.load(path)

    def test_unknown_method(self, path):
        def other(description):
            description["method"] = "stochastic_gradient_langevin"
            resign(description, path)

        rewrite(path, other)
        with pytest.raises(StorageError, match="stochastic_gradient_langevin"):
            self.load(path)

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            self.load(tmp_path / "nowhere")

    def test_pickles_are_never_opened(self, tmp_path):
        marker = tmp_path / "executed"

        class Exploit:
            def __reduce__(self):
                return Path.touch, (marker,)

        (tmp_path / "plain").write_bytes(pickle.dumps(Exploit()))
        torch.save({"state": Exploit()}, tmp_path / "torch")
        for name in ("plain", "torch"):
            with pytest.raises(StorageError, match="no safetensors file"):
                self.load(tmp_path / name)
        assert not marker.exists()


class TestAtomic:
    def test_failure_in_the_middle_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        bbh.save(posterior_of(), path)
        before = path.read_bytes()

        def half(tensors, target, metadata):
            save_file(tensors, target, metadata)
            Path(target).write_bytes(Path(target).read_bytes()[:100])
            raise OSError("no space left on device")

        monkeypatch.setattr(storage, "save_file", half)
        with pytest.raises(OSError, match="no space"):
            bbh.save(posterior_of(), path)
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["file"]

    def test_overwrites_when_all_goes_well(self, tmp_path):
        path = tmp_path / "new" / "folder" / "file"
        first, second = posterior_of(), posterior_of()
        bbh.save(first, path)
        bbh.save(second, path)
        loaded = bbh.load(path, mlp())
        assert torch.equal(loaded.weights.loc()["0.weight"], second.weights.loc()["0.weight"])
        assert not torch.equal(loaded.weights.loc()["0.weight"], first.weights.loc()["0.weight"])

    def test_readable_like_any_other_file(self, tmp_path):
        bbh.save(posterior_of(), tmp_path / "file")
        (tmp_path / "other").write_text("")
        assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_saving_draws_no_random_numbers(self, tmp_path):
        posterior, state = posterior_of(), torch.get_rng_state()
        bbh.save(posterior, tmp_path / "file")
        assert torch.equal(torch.get_rng_state(), state)
