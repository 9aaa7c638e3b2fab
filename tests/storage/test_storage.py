"""save and load: what is stored comes back, and another network is refused."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh import divergences, generators, likelihoods, methods, priors
from bbh.methods import FlowKind
from bbh.per_example import Sampling
from bbh.storage.files import StorageError
from scenarios import BatchNormNet, TwoInputs, mlp
from storage.small import SMALL, Categorical, OwnInitialization, OwnPrior, posterior_of, read, same

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
        bbh.save(posterior, tmp_path / "file", with_frozen=True)
        loaded = bbh.load(tmp_path / "file", Kinds(5.0))
        for name in ("flag", "number", "short", "nothing", "hidden"):
            assert torch.equal(loaded.constants()[name], posterior.constants()[name]), name
            assert loaded.constants()[name].dtype == posterior.constants()[name].dtype
        assert loaded.frozen()["frozen"].tolist() == [2.0] * 3

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
        network = TwoInputs()
        posterior = methods.maximum_a_posteriori(network, Categorical(), forward=adapter)
        bbh.save(posterior, tmp_path / "file")
        with pytest.raises(StorageError, match="forward="):
            bbh.load(tmp_path / "file", network)
        loaded = bbh.load(tmp_path / "file", network, forward=adapter)
        assert torch.equal(bbh.predict(loaded, inputs).mean, bbh.predict(posterior, inputs).mean)


class TestOtherNetworks:
    def test_what_was_frozen_is_frozen_again(self, tmp_path):
        network = mlp()
        network[0].requires_grad_(False)
        posterior = bbh.methods.bayes_by_backprop(network, Categorical())
        bbh.save(posterior, tmp_path / "file", with_frozen=True)
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
