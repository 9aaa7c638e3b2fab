"""Any network: what must work does, and what cannot work says so at once and offers a way out."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.per_example import PerExampleWeight, Sampling
from scenarios import METHODS, BatchNormNet, SmallLeNet, TiedNet, TwoInputs, mlp, over_methods

B = 6
Categorical = bbh.likelihoods.Categorical


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(3, 4, batch_first=True, bidirectional=True, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(self.cell(inputs)[0][:, -1])


class StepByStep(nn.Module):
    """A recurrent cell in a Python loop."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        state = None
        for step in inputs.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict(
            {"first": nn.ModuleDict({"inner": nn.Linear(4, 5)}), "last": nn.Linear(5, 3)}
        )

    def forward(self, inputs):
        return self.parts["last"](torch.tanh(self.parts["first"]["inner"](inputs)))


class Buffers(nn.Module):
    """Integer, boolean and non-persistent buffers, all of them used."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("order", torch.tensor([2, 0, 3, 1]))
        self.register_buffer("on", torch.tensor([True, False, True]))
        self.register_buffer("shift", torch.randn(3), persistent=False)

    def forward(self, inputs):
        return self.layer(inputs[:, self.order]) * self.on + self.shift


class PartlyFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 5).requires_grad_(False)
        self.head = nn.Linear(5, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, inputs):
        return self.head(torch.relu(self.backbone(inputs)))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([torch.randn(4, 5), torch.randn(5, 3)])

    def forward(self, inputs):
        return torch.tanh(inputs @ self.matrices[0]) @ self.matrices[1]


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        return self.layer(inputs) / self.temperature


class LooksAtValues(nn.Module):
    """Control flow that depends on the weights, so that draws take different branches."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        hidden = self.layer(inputs)
        if hidden.sum() > 0:
            hidden = hidden * 2
        return hidden.exp() if hidden.max().item() < 0.5 else hidden


class Names(nn.Module):
    """Parameters whose names are also those of methods and attributes of containers."""

    def __init__(self):
        super().__init__()
        self.names = nn.Parameter(torch.randn(4, 3))
        self.items_ = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.items_(inputs @ self.names)


class KeysAndValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Parameter(torch.randn(4, 3))
        self.values = nn.Parameter(torch.randn(3, 3))

    def forward(self, inputs):
        return inputs @ self.keys @ self.values


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(4, 2, 3)

    def forward(self, left, right):
        return self.bilinear(left, right)


def vectors() -> torch.Tensor:
    return torch.randn(B, 4)


def sequences() -> torch.Tensor:
    return torch.randn(B, 5, 3)


def attend(network, inputs):
    return network(inputs, inputs, inputs)[0].mean(1)


@dataclass
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any] = vectors
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "weight norm": Case(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Linear(4, 5)),
            nn.ReLU(),
            parametrizations.weight_norm(nn.Linear(5, 3)),
        )
    ),
    "spectral norm": Case(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 3))
    ),
    "orthogonal": Case(
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 3))
    ),
    "bidirectional gru": Case(lambda: Recurrent(nn.GRU), sequences),
    "bidirectional lstm": Case(lambda: Recurrent(nn.LSTM, num_layers=2), sequences),
    "lstm cell": Case(StepByStep, sequences),
    "attention": Case(
        lambda: nn.MultiheadAttention(3, 1, batch_first=True), sequences, {"forward": attend}
    ),
    "transposed convolution": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        ),
        lambda: torch.randn(B, 1, 5, 5),
    ),
    "grouped convolution": Case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, groups=2), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(6, 3)
        ),
        lambda: torch.randn(B, 4, 5, 5),
    ),
    "one-dimensional convolution": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        lambda: torch.randn(B, 2, 7),
    ),
    "three-dimensional convolution": Case(
        lambda: nn.Sequential(
            nn.Conv3d(1, 4, 2, stride=2), nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(4, 3)
        ),
        lambda: torch.randn(B, 1, 4, 4, 4),
    ),
    "embedding bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(7, 5), nn.Linear(5, 3)),
        lambda: torch.randint(0, 7, (B, 4)),
    ),
    "normalisation layers": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 8),
            nn.LayerNorm(8),
            nn.GroupNorm(2, 8),
            nn.RMSNorm(8),
            nn.PReLU(),
            nn.Linear(8, 3),
        )
    ),
    "instance norm": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        lambda: torch.randn(B, 1, 5, 5),
    ),
    "nested containers": Case(Nested),
    "buffers": Case(Buffers),
    "partly frozen": Case(PartlyFrozen),
    "parameter list": Case(Lists),
    "bare layer": Case(lambda: nn.Linear(4, 3)),
    "scalar": Case(Scalar),
    "double precision": Case(
        lambda: mlp().double(), lambda: torch.randn(B, 4, dtype=torch.float64)
    ),
    "control flow": Case(LooksAtValues),
    "two inputs": Case(Pair, lambda: (torch.randn(B, 4), torch.randn(B, 2))),
    "names": Case(Names),
    "keys and values": Case(KeysAndValues),
    "tied": Case(TiedNet, lambda: torch.randint(0, 3, (B, 5))),
}
over_cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


class TestWorks:
    @over_cases
    @over_methods
    def test_trains_and_predicts(self, method, case, request):
        if "dropout-weight norm" in request.node.name:
            pytest.skip("there is no kernel to mask: see the test of dropout masks")
        posterior = method(case.make(), Categorical(), **case.options).train()
        inputs, targets = case.inputs(), torch.randint(0, 3, (B,))
        energy = bbh.free_energy(posterior, (inputs, targets), num_data=B, num_samples=6)
        energy.total.backward()
        for name, value in posterior.named_parameters():
            assert value.grad is not None, name
            assert torch.isfinite(value.grad).all(), name
        predictive = bbh.predict(posterior, inputs, 5, keep_draws=True)
        assert predictive.draws.shape == (predictive.num_samples, B, 3)
        assert torch.isfinite(predictive.mean).all()

    @over_cases
    def test_point_estimate_is_the_network_itself(self, case):
        network, inputs = case.make().eval(), case.inputs()
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical(), **case.options)
        with torch.no_grad():
            call = case.options.get("forward") or bbh.network.call_network
            expected = call(network, inputs)
            outputs = posterior.eval()(inputs, posterior.sample(1))[0]
        torch.testing.assert_close(outputs, expected)
        assert outputs.dtype == expected.dtype

    @over_cases
    def test_every_draw_is_the_network_with_those_weights(self, case):
        """Draws written into a copy of the network by hand give the posterior's outputs."""
        network, inputs = case.make().eval(), case.inputs()
        posterior = bbh.methods.bayes_by_backprop(
            network, Categorical(), initial_scale=0.3, **case.options
        )
        samples = posterior.eval().sample(4)
        call = case.options.get("forward") or bbh.network.call_network
        with torch.no_grad():
            outputs = posterior(inputs, samples)
            for index in range(4):
                for name, parameter in network.named_parameters():
                    if name in samples:
                        parameter.copy_(samples[name][index])
                torch.testing.assert_close(outputs[index], call(network, inputs))

    def test_frozen_parameters_never_move(self):
        network = PartlyFrozen()
        posterior = bbh.methods.bayes_by_backprop(network, Categorical())
        assert set(posterior.weights.shapes) == {"head.weight"}
        loader = DataLoader(TensorDataset(vectors(), torch.randint(0, 3, (B,))))
        bbh.fit(posterior, loader, epochs=1, progress=False)
        for name in ("backbone.weight", "backbone.bias", "head.bias"):
            known = dict(network.named_parameters())[name]
            assert torch.equal(posterior.constants()[name], known)
            assert name not in dict(posterior.named_parameters())

    def test_empty_batch(self):
        for execution in (bbh.Loop(), bbh.Vmap(), None):
            posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical(), execution=execution)
            assert posterior(torch.empty(0, 4), posterior.sample(3)).shape == (3, 0, 3)

    def test_control_flow_takes_each_draws_own_branch(self):
        posterior = bbh.methods.bayes_by_backprop(LooksAtValues(), Categorical(), initial_scale=1.0)
        samples, inputs = posterior.eval().sample(20), vectors()
        chosen = posterior(inputs, samples)
        posterior.execution = bbh.Loop()
        assert torch.equal(chosen, posterior(inputs, samples))
        posterior.execution = bbh.Vmap()  # asked for, so not silently replaced
        with pytest.raises(RuntimeError, match=r"vmap|item"):
            posterior(inputs, samples)

    def test_a_network_that_refused_vmap_is_not_asked_again(self):
        calls = []

        class Counting(LooksAtValues):
            def forward(self, inputs):
                calls.append(1)
                return super().forward(inputs)

        posterior = bbh.methods.bayes_by_backprop(Counting(), Categorical()).eval()
        samples, inputs = posterior.sample(3), vectors()
        posterior(inputs, samples)
        assert len(calls) == 1 + 3
        posterior(inputs, samples)
        assert len(calls) == 1 + 3 + 3

    def test_mistakes_of_the_network_keep_their_message(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            posterior(torch.randn(5, 99), posterior.sample(3))

    def test_outputs_that_are_no_tensor(self):
        attention = nn.MultiheadAttention(3, 1, batch_first=True)
        posterior = bbh.methods.bayes_by_backprop(
            attention,
            Categorical(),
            forward=lambda network, inputs: network(inputs, inputs, inputs),
        )
        message = r"MultiheadAttention returned tuple.*forward=lambda network, inputs"
        for num_samples in (1, 3):
            with pytest.raises(TypeError, match=message):
                posterior(sequences(), posterior.sample(num_samples))

    def test_weights_must_be_complete(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        samples = dict(posterior.sample(2))
        del samples["0.bias"]
        with pytest.raises(ValueError, match=r"0\.bias"):
            posterior(vectors(), samples)
        with pytest.raises(ValueError, match="num_samples=0"):
            posterior.sample(0)
        wider = bbh.methods.bayes_by_backprop(
            nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3)), Categorical()
        )
        with pytest.raises(ValueError, match=r"'0\.weight' in the shape \[2, 20, 4\]"):
            posterior(vectors(), wider.sample(2))

    @pytest.mark.parametrize("name", ["spectral norm", "weight norm", "instance norm", "tied"])
    def test_save_and_load(self, name, tmp_path):
        case = CASES[name]
        posterior, inputs = bbh.methods.bayes_by_backprop(case.make(), Categorical()), case.inputs()
        loader = [(inputs, torch.randint(0, 3, (B,)))]
        bbh.fit(posterior, loader, epochs=2, num_data=B, progress=False)
        bbh.save(posterior, tmp_path / "file")
        loaded = bbh.load(tmp_path / "file", case.make())
        means = []
        for one in (posterior, loaded):
            torch.manual_seed(2)
            means.append(bbh.predict(one, inputs, 4).mean)
        assert torch.equal(*means)

    def test_masks_of_dropout_by_kind_of_layer(self):
        """A switched-off unit is a row of zeros along the axis of the inputs."""
        network = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ConvTranspose2d(8, 5, 1), nn.Conv2d(5, 3, 1))
        posterior = bbh.methods.mc_dropout(network, Categorical()).eval()
        samples = posterior.sample(200)
        for name, axis in (("1.weight", 1), ("2.weight", 2)):
            value = samples[name].movedim(axis, 1).flatten(2)
            off = (value == 0).all(2)
            assert torch.equal(off, (value == 0).any(2)), name
            assert off.double().mean().item() == pytest.approx(0.5, abs=0.06)
        assert not (samples["0.weight"] == 0).any()  # the first layer keeps its inputs

    def test_dropout_masks_no_part_of_a_parametrisation(self):
        """Direction and length of a weight-normed kernel: masked, the length would be NaN."""
        normed = parametrizations.weight_norm(nn.Linear(4, 5))
        posterior = bbh.methods.mc_dropout(
            nn.Sequential(nn.Linear(4, 4), normed, nn.Linear(5, 3)), Categorical()
        ).eval()
        masked = {name for name, value in posterior.sample(50).items() if (value == 0).any()}
        assert masked == {"2.weight"}
        with pytest.raises(ValueError, match=r"no matrix or convolution.*nn\.Dropout"):
            bbh.methods.mc_dropout(normed, Categorical())


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.Linear(4, 4), nn.utils.weight_norm(nn.Linear(4, 3)))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))


class TestRefused:
    def within(self, part):
        return nn.Sequential(nn.Linear(4, 4), part)

    @over_methods
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    def test_compiled_by_torch_jit(self, method):
        scripted = torch.jit.script(nn.Linear(4, 3))
        with pytest.raises(TypeError, match=r"torch\.jit.*Python module"):
            method(scripted, Categorical())
        with pytest.raises(TypeError, match=r"module '1' .*torch\.jit"):
            method(self.within(scripted), Categorical())
        traced = torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4))
        with pytest.raises(TypeError, match=r"torch\.jit"):
            method(traced, Categorical())

    @over_methods
    def test_wrapped_for_several_devices(self, method):
        with pytest.raises(TypeError, match=r"DataParallel.*Pass network\.module"):
            method(nn.DataParallel(mlp()), Categorical())
        with pytest.raises(TypeError, match=r"module '1' \(DataParallel\)"):
            method(self.within(nn.DataParallel(nn.Linear(4, 3))), Categorical())

    @over_methods
    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_lazy_parameters(self, method):
        network = self.within(nn.LazyLinear(3))
        with pytest.raises(TypeError, match=r"module '1' .*'weight'.*Run one batch"):
            method(network, Categorical())
        network(vectors())
        assert bbh.predict(method(network, Categorical()), vectors(), 2).mean.shape == (B, 3)

    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_lazy_buffers(self):
        with pytest.raises(TypeError, match=r"module '1' .*Run one batch"):
            bbh.methods.maximum_a_posteriori(
                self.within(nn.LazyBatchNorm1d(affine=False)), Categorical()
            )

    @over_methods
    def test_complex_parameters(self, method):
        with pytest.raises(TypeError, match=r"module 'inner' .*'phase' is complex.*requires_grad_"):
            method(Complex(), Categorical())

    def test_a_frozen_complex_parameter_is_fine(self):
        network = Complex()
        network.layer = nn.Linear(4, 3)
        network.inner.phase.requires_grad_(False)
        network.forward = None
        posterior = bbh.methods.maximum_a_posteriori(
            network,
            Categorical(),
            forward=lambda module, inputs: module.layer(inputs) * module.inner.phase.real,
        )
        assert bbh.predict(posterior, vectors()).mean.shape == (B, 3)

    @over_methods
    def test_nothing_to_train(self, method):
        for network in (nn.ReLU(), mlp().requires_grad_(False)):
            with pytest.raises(ValueError, match=r"no trainable parameter.*Unfreeze"):
                method(network, Categorical())

    @over_methods
    def test_weight_norm_of_old(self, method):
        with pytest.raises(TypeError, match=r"torch\.nn\.utils\.parametrizations"):
            method(old_weight_norm(), Categorical())

    def test_a_distribution_that_leaves_weights_out(self):
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
        with pytest.raises(ValueError, match=r"does not cover \['0\.bias'"):
            bbh.Posterior(mlp(), posterior.weights, posterior.prior, Categorical())


class TestSelection:
    def chosen(self, network, bayesian, method=bbh.methods.bayes_by_backprop):
        """Which parameters differ from draw to draw; the rest must be the network's own."""
        posterior = method(network, Categorical(), bayesian=bayesian).eval()
        samples = posterior.sample(3)
        varying = {name for name, value in samples.items() if not torch.equal(value[0], value[1])}
        for name, value in network.named_parameters():
            if name not in varying and value.requires_grad:
                assert torch.equal(samples[name][2], value)
        return varying

    @pytest.mark.parametrize(
        ("bayesian", "expected"),
        [
            ("fc2.weight", {"fc2.weight"}),
            (["fc2.weight", "fc1.bias"], {"fc2.weight", "fc1.bias"}),
            ("fc2", {"fc2.weight", "fc2.bias"}),
            ("*.bias", {"conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"}),
            (["conv?.weight"], {"conv1.weight", "conv2.weight"}),
            (lambda name, value: value.dim() == 4, {"conv1.weight", "conv2.weight"}),
            (("fc2.*", "fc2.bias"), {"fc2.weight", "fc2.bias"}),
        ],
        ids=["name", "names", "module", "glob", "question mark", "predicate", "overlap"],
    )
    def test_ways_to_say_which(self, bayesian, expected):
        assert self.chosen(SmallLeNet(), bayesian) == expected
        assert self.chosen(SmallLeNet(), bayesian, METHODS["bayes_by_hypernet"]) == expected

    def test_default_leaves_normalisation_layers_out(self):
        expected = {"conv.weight", "conv.bias", "head.weight", "head.bias"}
        assert self.chosen(BatchNormNet(), None) == expected
        assert self.chosen(BatchNormNet(), "norm") == {"norm.weight", "norm.bias"}

    def test_tied_weights_answer_to_both_names(self):
        for name in ("embedding.weight", "output.weight", "output"):
            expected = {"embedding.weight"} | ({"output.bias"} if name == "output" else set())
            assert self.chosen(TiedNet(), name) == expected

    def test_typing_error_is_met_with_a_suggestion(self):
        with pytest.raises(ValueError, match=r"'fc1\.wieght' matches no.*mean 'fc1\.weight'"):
            self.chosen(SmallLeNet(), "fc1.wieght")
        with pytest.raises(ValueError, match=r"matches no parameter.*conv1\.weight"):
            self.chosen(SmallLeNet(), ["fc1", "something.else.entirely"])

    def test_frozen_parameters_cannot_be_chosen(self):
        with pytest.raises(ValueError, match=r"only frozen.*requires_grad_\(True\)"):
            self.chosen(TwoInputs(), "branches.left")
        assert self.chosen(TwoInputs(), "branches") == {
            "branches.right.0.weight",
            "branches.right.0.bias",
        }

    def test_nothing_chosen(self):
        for nothing in ([], lambda name, value: False):
            with pytest.raises(ValueError, match="selects no trainable parameter"):
                self.chosen(SmallLeNet(), nothing)

    def test_only_the_chosen_know_the_prior(self):
        network, prior = nn.Linear(4, 3), bbh.priors.Normal(0.5)
        posterior = bbh.methods.maximum_a_posteriori(
            network, Categorical(), prior, bayesian="weight"
        )
        cost = posterior.weights.cost(posterior.sample(1), prior).complexity
        expected = -torch.distributions.Normal(0.0, 0.5).log_prob(network.weight).sum()
        torch.testing.assert_close(cost, expected)


class TestBatchNorm:
    def data(self, number=12):
        return torch.randn(number, 1, 6, 6) * 2 + 1, torch.randint(0, 3, (number,))

    def test_statistics_move_in_training_as_the_networks_would(self):
        network, (inputs, targets) = BatchNormNet().train(), self.data()
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        bbh.fit(posterior, [(inputs, targets)], epochs=1, num_data=12, progress=False)
        network(inputs)
        for name, value in network.named_buffers():
            torch.testing.assert_close(posterior.constants()[name], value)
        assert posterior.constants()["norm.num_batches_tracked"] == 1
        assert not torch.equal(posterior.constants()["norm.running_mean"], torch.zeros(4))

    def test_every_draw_moves_them(self):
        posterior = METHODS["bayes_by_hypernet"](BatchNormNet(), Categorical()).train()
        posterior(self.data()[0], posterior.sample(5))
        assert posterior.constants()["norm.num_batches_tracked"] == 5

    def test_evaluation_leaves_them_alone(self):
        posterior = METHODS["bayes_by_hypernet"](BatchNormNet(), Categorical()).eval()
        posterior(self.data()[0], posterior.sample(5))
        assert posterior.constants()["norm.num_batches_tracked"] == 0

    def test_members_of_an_ensemble_have_their_own(self):
        inputs, _ = self.data()
        posterior = bbh.methods.deep_ensemble(BatchNormNet(), Categorical(), num_members=3).train()
        members = posterior.sample(3)
        activations = [
            F.conv2d(inputs, members["conv.weight"][k], members["conv.bias"][k]) for k in range(3)
        ]
        posterior(inputs, members)
        running = posterior.sample(3)["norm.running_mean"]
        for k in range(3):
            expected = 0.1 * activations[k].mean((0, 2, 3))
            torch.testing.assert_close(running[k], expected.detach())
        assert posterior.sample(3)["norm.num_batches_tracked"].tolist() == [1, 1, 1]
        # Another order or number of members still brings each one's own statistics.
        for draw in range(2):
            some = posterior.sample(2)
            kernel = some["conv.weight"][draw]
            k = [torch.equal(kernel, one) for one in members["conv.weight"]].index(True)
            assert torch.equal(some["norm.running_mean"][draw], running[k])
            assert torch.equal(some["norm.weight"][draw], members["norm.weight"][k])

    @over_methods
    def test_refreshed_statistics_are_those_of_the_draw(self, method):
        posterior = method(BatchNormNet(), Categorical()).train()
        inputs, targets = self.data(40)
        before = {name: value.clone() for name, value in posterior.state_dict().items()}
        samples = bbh.refresh_batch_norm(posterior, [(inputs, targets)], num_samples=3)
        number = posterior.weights.num_useful(3)
        for index in range(number):
            activations = F.conv2d(
                inputs, samples["conv.weight"][index], samples["conv.bias"][index]
            )
            mean = activations.mean((0, 2, 3))
            variance = activations.transpose(0, 1).flatten(1).var(1)
            torch.testing.assert_close(samples["norm.running_mean"][index], mean)
            torch.testing.assert_close(samples["norm.running_var"][index], variance)
        assert len(samples["norm.running_mean"]) == number
        assert samples["norm.num_batches_tracked"].tolist() == [1] * number
        assert posterior.training
        assert posterior.network.norm.momentum == 0.1
        for name, value in posterior.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_refreshed_statistics_average_over_batches(self):
        posterior = bbh.methods.maximum_a_posteriori(BatchNormNet(), Categorical())
        inputs, targets = self.data(40)
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=10)
        samples = bbh.refresh_batch_norm(posterior, loader)
        activations = F.conv2d(inputs, samples["conv.weight"][0], samples["conv.bias"][0])
        means = torch.stack([part.mean((0, 2, 3)) for part in activations.split(10)])
        variances = torch.stack(
            [part.transpose(0, 1).flatten(1).var(1) for part in activations.split(10)]
        )
        torch.testing.assert_close(samples["norm.running_mean"][0], means.mean(0))
        torch.testing.assert_close(samples["norm.running_var"][0], variances.mean(0))
        assert samples["norm.num_batches_tracked"].tolist() == [4]

    @pytest.mark.parametrize("execution", [bbh.Loop(), bbh.Vmap(), None], ids=str)
    def test_predictions_use_the_refreshed_statistics(self, execution):
        posterior = bbh.methods.bayes_by_backprop(
            BatchNormNet(), Categorical(), initial_scale=0.3, execution=execution
        )
        inputs, targets = self.data(40)
        samples = bbh.refresh_batch_norm(posterior, [(inputs, targets)], num_samples=3)
        draws = bbh.predict(posterior, inputs, samples=samples, keep_draws=True).draws
        for index in range(3):
            one = {name: value[index] for name, value in samples.items()}
            hidden = F.conv2d(inputs, one["conv.weight"], one["conv.bias"])
            # On the very data of the statistics, batch norm in training mode does the same, but
            # for the variance it divides by: n there, n − 1 in the running statistics.
            hidden = F.batch_norm(
                hidden,
                one["norm.running_mean"],
                one["norm.running_var"],
                one["norm.weight"],
                one["norm.bias"],
            )
            outputs = F.linear(F.relu(hidden).mean((2, 3)), one["head.weight"], one["head.bias"])
            torch.testing.assert_close(draws[index], outputs.softmax(-1))
        stale = {name: value for name, value in samples.items() if "running" not in name}
        del stale["norm.num_batches_tracked"]
        assert not torch.allclose(
            draws, bbh.predict(posterior, inputs, samples=stale, keep_draws=True).draws
        )

    def test_nothing_to_refresh(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        with pytest.raises(ValueError, match="no batch-norm layer"):
            bbh.refresh_batch_norm(posterior, [vectors()])
        posterior = bbh.methods.maximum_a_posteriori(BatchNormNet(), Categorical())
        with pytest.raises(ValueError, match="empty"):
            bbh.refresh_batch_norm(posterior, [])
        assert posterior.network.norm.momentum == 0.1


class TestEnsemble:
    def test_the_first_is_the_network_and_the_others_are_fresh(self):
        network = SmallLeNet()
        posterior = bbh.methods.deep_ensemble(network, Categorical(), num_members=4)
        members = posterior.sample(4)
        for name, value in network.named_parameters():
            assert torch.equal(members[name][0], value)
            for index in range(1, 4):
                for other in range(index):
                    assert not torch.equal(members[name][index], members[name][other]), name
        # As its own class would initialise it: uniform up to 1/√fan_in.
        bound = 1 / math.sqrt(8)
        assert members["fc2.weight"].abs().max() <= bound
        assert members["fc2.weight"][1:].abs().max() > 0.8 * bound

    def test_normalisation_layers_start_anew_and_unmoved(self):
        network = BatchNormNet()
        with torch.no_grad():
            network.norm.weight.fill_(3.0)
            network.norm.running_mean.fill_(7.0)
        members = bbh.methods.deep_ensemble(network, Categorical(), num_members=2).sample(2)
        assert members["norm.weight"].tolist() == [[3.0] * 4, [1.0] * 4]
        assert members["norm.running_mean"].tolist() == [[7.0] * 4, [0.0] * 4]

    def test_frozen_layers_keep_their_statistics_in_every_member(self):
        network = BatchNormNet()
        network.norm.running_mean.fill_(7.0)
        network.norm.requires_grad_(False)
        members = bbh.methods.deep_ensemble(network, Categorical(), num_members=3).sample(3)
        assert members["norm.running_mean"].tolist() == [[7.0] * 4] * 3

    def test_attention_is_initialised_anew(self, caplog):
        with caplog.at_level(logging.WARNING, logger="bbh"):
            members = bbh.methods.deep_ensemble(
                nn.MultiheadAttention(4, 2), Categorical(), num_members=2
            ).sample(2)
        assert caplog.records == []
        assert not torch.equal(members["in_proj_weight"][0], members["in_proj_weight"][1])

    def test_networks_made_by_the_user(self, caplog):
        made = []

        def make():
            network = Scalar()
            with torch.no_grad():
                network.temperature.fill_(10.0 + len(made))
            made.append(network)
            return network

        with caplog.at_level(logging.WARNING, logger="bbh"):
            posterior = bbh.methods.deep_ensemble(
                Scalar(), Categorical(), num_members=3, make_network=make
            )
        assert len(made) == 2
        assert posterior.sample(3)["temperature"].tolist() == pytest.approx([0.7, 10.0, 11.0])
        torch.testing.assert_close(posterior.sample(3)["layer.weight"][2], made[1].layer.weight)
        assert caplog.records == []

    def test_a_warning_names_what_cannot_be_initialised_anew(self, caplog):
        with caplog.at_level(logging.WARNING, logger="bbh"):
            posterior = bbh.methods.deep_ensemble(Scalar(), Categorical(), num_members=2)
        (record,) = caplog.records
        assert "temperature" in record.getMessage()
        assert "layer" not in record.getMessage()
        assert "make_network=" in record.getMessage()
        members = posterior.sample(2)
        assert members["temperature"][0] == members["temperature"][1]
        assert not torch.equal(members["layer.weight"][0], members["layer.weight"][1])

    def test_another_network_from_the_user(self):
        with pytest.raises(ValueError, match=r"without the parameters.*fc1\.weight"):
            bbh.methods.deep_ensemble(SmallLeNet(), Categorical(), make_network=mlp)

    def test_only_the_chosen_differ_between_members(self):
        posterior = bbh.methods.deep_ensemble(
            SmallLeNet(), Categorical(), num_members=2, bayesian="fc2"
        )
        members = posterior.sample(2)
        for name, value in members.items():
            assert torch.equal(value[0], value[1]) is not name.startswith("fc2"), name

    def test_no_members(self):
        with pytest.raises(ValueError, match="num_members=0"):
            bbh.methods.deep_ensemble(mlp(), Categorical(), num_members=0)


class TestPerExampleWeights:
    """Local reparametrisation and Flipout belong to training; a draw to predict with is one."""

    @pytest.mark.parametrize("sampling", [Sampling.LOCAL, Sampling.FLIPOUT])
    @pytest.mark.parametrize(
        "method",
        [bbh.methods.bayes_by_backprop, bbh.methods.multiplicative_normalizing_flows],
        ids=["backprop", "flows"],
    )
    def test_only_in_training(self, method, sampling):
        posterior = method(mlp(), Categorical(), initial_scale=0.3, sampling=sampling)
        same = torch.randn(1, 4).expand(50, 4)
        training = posterior.train().sample(1)
        assert isinstance(training["0.weight"], PerExampleWeight)
        outputs = posterior(same, training)[0]
        assert outputs.std(0).min() > 1e-3  # equal inputs, different draws
        evaluation = posterior.eval().sample(1)
        assert not any(isinstance(value, PerExampleWeight) for value in evaluation.values())
        outputs = posterior(same, evaluation)[0]
        torch.testing.assert_close(outputs, outputs[:1].expand_as(outputs))

    def test_plain_sampling_shares_a_draw_in_training_too(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical(), initial_scale=0.3).train()
        same = torch.randn(1, 4).expand(50, 4)
        outputs = posterior(same, posterior.sample(1))[0]
        torch.testing.assert_close(outputs, outputs[:1].expand_as(outputs))

    @pytest.mark.parametrize("sampling", [Sampling.LOCAL, Sampling.FLIPOUT])
    def test_predict_after_fit_gives_equal_inputs_equal_answers(self, sampling):
        posterior = bbh.methods.bayes_by_backprop(
            mlp(), Categorical(), initial_scale=0.3, sampling=sampling
        )
        seen = []
        sample = posterior.weights.sample
        posterior.weights.sample = lambda number: seen.append(sample(number)) or seen[-1]
        batch = vectors(), torch.randint(0, 3, (B,))
        bbh.fit(posterior, [batch], epochs=1, num_data=B, progress=False, compare=False)
        assert all(isinstance(one["2.weight"], PerExampleWeight) for one in seen)
        seen.clear()
        for mode in (True, False):
            mean = bbh.predict(posterior.train(mode), torch.randn(1, 4).expand(9, 4), 4).mean
            torch.testing.assert_close(mean, mean[:1].expand_as(mean))
        assert seen
        assert not any(isinstance(one["2.weight"], PerExampleWeight) for one in seen)

    def test_layers_without_a_recipe_use_the_ordinary_draw(self):
        case = CASES["bidirectional gru"]
        posterior = bbh.methods.bayes_by_backprop(
            case.make(), Categorical(), sampling=Sampling.LOCAL
        ).train()
        assert torch.isfinite(posterior(case.inputs(), posterior.sample(2))).all()


class TestModes:
    def test_modules_put_into_eval_stay_in_it(self):
        features = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        network = nn.Sequential(features.requires_grad_(False), nn.Linear(6, 3))
        features.eval()
        posterior = bbh.methods.bayes_by_backprop(network, Categorical(), bayesian="1")
        inputs = torch.randn(20, 4)
        batch = (inputs, torch.zeros(20, dtype=torch.long))
        before = [value.clone() for value in posterior.statistics()]
        bbh.fit(posterior, [batch], epochs=2, num_data=20, progress=False)
        for value, old in zip(posterior.statistics(), before, strict=True):
            assert torch.equal(value, old)
        samples = posterior.train().sample(1)
        assert torch.equal(posterior(inputs, samples), posterior(inputs, samples))

    def test_padding_rows_keep_the_networks_value(self):
        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(5, 4, padding_idx=0)
                self.head = nn.Linear(4, 3)

            def forward(self, tokens):
                return self.head(self.embedding(tokens).mean(1))

        network = Tokens()
        padding = torch.zeros(2, 6, dtype=torch.long)
        for method in (bbh.methods.bayes_by_backprop, bbh.methods.bayes_by_hypernet):
            posterior = method(network, Categorical()).eval()
            for table in posterior.weights.parameters():
                nn.init.normal_(table.data)
            samples = posterior.sample(4)
            # The embedding of padding is zero in every draw: outputs are the head's bias.
            expected = samples["head.bias"].unsqueeze(1).expand(4, 2, 3)
            for execution in (bbh.Loop(), bbh.Vmap()):
                posterior.execution = execution
                torch.testing.assert_close(posterior(padding, samples), expected)
            assert not torch.allclose(posterior(padding + 1, samples), expected)

    def test_statistics_of_layers_in_eval_are_not_refreshed(self):
        features = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).requires_grad_(False)
        network = nn.Sequential(features, nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        features.eval()
        posterior = bbh.methods.bayes_by_backprop(network, Categorical())
        refreshed = bbh.refresh_batch_norm(posterior, [torch.randn(30, 4) + 3], 2)
        assert "2.running_mean" in refreshed
        assert "0.1.running_mean" not in refreshed
        features.train()
        network[2].eval()
        network[0][1].eval()
        nothing = bbh.methods.bayes_by_backprop(network, Categorical())
        with pytest.raises(ValueError, match=r"into eval\(\) keep theirs"):
            bbh.refresh_batch_norm(nothing, [torch.randn(30, 4)], 2)


class Layouts(nn.Module):
    """Notes how its pixels lie in memory, and flattens them by view or by reshape."""

    def __init__(self, flatten):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.classify = nn.Linear(48, 3)
        self.flatten = flatten
        self.seen = []

    def forward(self, images):
        hidden = torch.relu(self.conv(images))
        self.seen.append(hidden.is_contiguous(memory_format=torch.channels_last))
        return self.classify(self.flatten(hidden))


LAYOUTS = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="no oneDNN, no preference for a layout"
)


@LAYOUTS
@pytest.mark.parametrize("inputs_per_draw", [False, True])
def test_images_have_their_channels_last_on_a_cpu(inputs_per_draw):
    network = Layouts(lambda hidden: hidden.flatten(1))
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Categorical(), num_members=2)
    images, samples = torch.randn(2, 5, 1, 6, 6), posterior.sample(2)
    given = images if inputs_per_draw else images[0]
    outputs = posterior(given, samples, inputs_per_draw=inputs_per_draw)
    assert posterior.network.seen == [True, True]
    for draw in range(2):
        weights = {name: value[draw] for name, value in samples.items()}
        one = images[draw] if inputs_per_draw else images[0]
        torch.testing.assert_close(outputs[draw], functional_call(network, weights, (one,)))


@LAYOUTS
def test_networks_that_view_their_pixels_keep_channels_first(caplog):
    network = Layouts(lambda hidden: hidden.view(len(hidden), -1))
    posterior = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Categorical())
    with caplog.at_level("INFO", logger="bbh"):
        for _ in range(2):
            posterior(torch.randn(5, 1, 6, 6), posterior.sample(1))
    # Once in vain, once again, and from then on as it wants.
    assert posterior.network.seen == [True, False, False]
    assert "Layouts keeps channels first" in caplog.text


def test_a_network_at_fault_says_so():
    network = Layouts(lambda hidden: hidden.flatten(1)[:, 1:])
    posterior = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Categorical())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        posterior(torch.randn(5, 1, 6, 6), posterior.sample(1))
    assert posterior.runnable.fits_channels_last is None


@LAYOUTS
def test_a_layout_tried_in_vain_leaves_no_trace():
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(), Viewed(), nn.Linear(48, 3)
    )
    results = []
    for fits in (None, False):
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical()).train()
        posterior.runnable.fits_channels_last = fits
        torch.manual_seed(1)
        outputs = posterior(torch.ones(5, 1, 6, 6), posterior.sample(1))
        results.append([outputs, *posterior.statistics(), torch.rand(3)])
    torch.testing.assert_close(*results, rtol=0, atol=0)


class Viewed(nn.Module):
    def forward(self, hidden):
        return hidden.view(len(hidden), -1)
