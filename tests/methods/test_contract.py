"""What every method must do on every network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader, Dataset

import bbh
from bbh.batches import cut
from bbh.execution import Automatic, Recorded
from scenarios import (
    BatchNormNet,
    LSTMNet,
    SmallLeNet,
    TiedNet,
    TransformerNet,
    TwoInputs,
    dropout_mlp,
    mlp,
    over_methods,
)

NUM_DATA = 12


def images() -> Tensor:
    return torch.randn(NUM_DATA, 1, 6, 6)


def tokens() -> Tensor:
    return torch.randint(0, 3, (NUM_DATA, 5))


@dataclass
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)


NETWORKS = {
    "mlp": Case(mlp, lambda: torch.randn(NUM_DATA, 4)),
    "lenet": Case(SmallLeNet, images),
    "batch norm": Case(BatchNormNet, images),
    "lstm": Case(LSTMNet, tokens),
    "transformer": Case(TransformerNet, tokens),
    "tied": Case(TiedNet, tokens),
    "own dropout": Case(dropout_mlp, lambda: torch.randn(NUM_DATA, 4)),
    "partial": Case(SmallLeNet, images, {"bayesian": ["fc2", "conv1.*"]}),
    "several inputs": Case(TwoInputs, lambda: (torch.randn(NUM_DATA, 2), torch.randn(NUM_DATA, 3))),
    "adapter": Case(
        TwoInputs,
        lambda: {"a": torch.randn(NUM_DATA, 2), "b": torch.randn(NUM_DATA, 3)},
        {"forward": lambda network, inputs: network(inputs["a"], inputs["b"])},
    ),
}
over_networks = pytest.mark.parametrize("case", NETWORKS.values(), ids=NETWORKS.keys())
# Where a test of every kind of network takes minutes: the one with most to get wrong.
_TELLING = ("batch norm",)
over_telling_networks = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name in _TELLING else pytest.mark.slow)
        for name, case in NETWORKS.items()
    ],
)


class Examples(Dataset):
    def __init__(self, inputs: Any):
        self.inputs = inputs
        self.targets = torch.randint(0, 3, (NUM_DATA,))

    def __len__(self) -> int:
        return NUM_DATA

    def __getitem__(self, index: int) -> Any:
        def at(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: at(one) for name, one in value.items()}
            return tuple(at(one) for one in value) if isinstance(value, tuple) else value[index]

        return at(self.inputs), self.targets[index]


def build(method: Callable[..., Any], case: Case) -> bbh.Posterior[Any]:
    return method(case.make(), bbh.likelihoods.Categorical(), **case.options)


@over_networks
@over_methods
def test_outputs_cost_and_gradients(method, case):
    posterior = build(method, case).train()
    inputs, targets = case.inputs(), torch.randint(0, 3, (NUM_DATA,))
    samples = posterior.sample(4)
    for name, shape in posterior.weights.shapes.items():
        assert samples[name].shape == (4, *shape)
    assert posterior(inputs, samples).shape == (4, NUM_DATA, 3)
    energy = bbh.free_energy(posterior, (inputs, targets), num_data=NUM_DATA)
    for term in energy:
        assert term.shape == ()
        assert torch.isfinite(term)
    energy.total.backward()
    without = [
        name
        for name, value in posterior.named_parameters()
        if value.grad is None or not torch.isfinite(value.grad).all()
    ]
    assert without == []


@over_networks
@over_methods
def test_same_seed_same_result(method, case):
    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        posterior = build(method, case)
        inputs = case.inputs()
        energy = bbh.free_energy(
            posterior.train(), (inputs, torch.arange(NUM_DATA) % 3), num_data=NUM_DATA
        )
        return energy.total, bbh.predict(posterior, inputs, num_samples=5).mean

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


@over_networks
@over_methods
def test_loop_equals_vmap_where_vmap_applies(method, case):
    posterior = build(method, case).eval().double()
    if posterior.always_on:
        pytest.skip("the network's own dropout draws other numbers in another order")
    inputs = case.inputs()
    double = _double(inputs)
    with torch.no_grad():
        samples = posterior.sample(3)
        # The automatic choice must give the loop's answer whatever it chooses.
        chosen = posterior(double, samples)
        looped = posterior(double, samples, execution=bbh.Loop())
        torch.testing.assert_close(chosen, looped)
        if not isinstance(case.make(), LSTMNet | TransformerNet):
            for chunk in (None, 2):
                batched = posterior(double, samples, execution=bbh.Vmap(chunk))
                torch.testing.assert_close(batched, looped)


@over_networks
@over_methods
def test_save_and_load_give_identical_predictions(method, case, tmp_path):
    posterior, inputs = build(method, case), case.inputs()
    path = tmp_path / "posterior.safetensors"
    bbh.save(posterior, path, with_frozen=True)
    torch.manual_seed(99)  # another initialisation: everything must come from the file
    loaded = bbh.load(path, case.make(), forward=case.options.get("forward"))
    predictions = []
    for one in (posterior, loaded):
        torch.manual_seed(5)
        predictions.append(bbh.predict(one, inputs, num_samples=6).mean)
    assert torch.equal(*predictions)


@over_telling_networks
@over_methods
def test_resumed_training_equals_uninterrupted(method, case, tmp_path):
    def train(epochs: int, **options: Any) -> dict[str, Tensor]:
        torch.manual_seed(1)
        posterior = build(method, case)
        loader = DataLoader(Examples(case.inputs()), batch_size=5, shuffle=True)
        if options.pop("disturb", False):
            torch.manual_seed(1234)  # a resumed process has another random state
        # By default β and the learning rate may depend on how many epochs there are in all.
        options |= {"beta": 1.0, "scheduler": partial(ConstantLR, factor=1.0)}
        bbh.fit(posterior, loader, epochs=epochs, progress=False, **options)
        return posterior.state_dict()

    whole = train(3)
    path = tmp_path / "checkpoint"
    train(2, checkpoint=path)
    resumed = train(3, checkpoint=bbh.Checkpoint(path, resume=True), disturb=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


@over_methods
def test_the_network_passed_in_is_never_changed(method):
    network = BatchNormNet()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    posterior = method(network, bbh.likelihoods.Categorical())
    loader = DataLoader(Examples(images()), batch_size=4)
    bbh.fit(posterior, loader, epochs=1, progress=False)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(value.device.type == "cpu" for value in network.parameters())


@over_networks
def test_map_is_the_network_itself(case):
    network, inputs = case.make().eval(), case.inputs()
    options = {name: one for name, one in case.options.items() if name != "bayesian"}
    posterior = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Categorical(), **options)
    with torch.no_grad():
        call = case.options.get("forward") or bbh.network.call_network
        expected = call(network, inputs).softmax(-1)
    torch.testing.assert_close(bbh.predict(posterior, inputs).mean, expected)


def test_hypernet_starts_at_the_networks_own_weights():
    network = mlp()
    posterior = bbh.methods.bayes_by_hypernet(network, bbh.likelihoods.Categorical())
    samples = posterior.sample(4000)
    for name, value in network.named_parameters():
        spread = 0.1 / bbh.network.fan_in(name, posterior.weights.shapes) ** 0.5
        # The mean over draws and over the 256 probes of the initialisation are both estimates.
        difference = (samples[name].mean(0) - value).abs().mean()
        assert difference < 4 * spread / 256**0.5, name
        assert 0.5 * spread < samples[name].std(0).mean() < 2 * spread, name


def _double(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: _double(one) for name, one in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_double(one) for one in inputs)
    return inputs.double() if inputs.is_floating_point() else inputs


def test_cut_keeps_the_structure():
    inputs = {"a": torch.arange(6), "b": (torch.arange(6), [torch.arange(6)])}
    part = cut(inputs, 2, 4)
    assert part["a"].tolist() == part["b"][0].tolist() == part["b"][1][0].tolist() == [2, 3]


class Averaging(torch.nn.Module):
    """Keeps running means, which draws that run side by side could not."""

    def __init__(self, writes: bool):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GroupNorm(2, 8))
        self.register_buffer("means", torch.zeros(4))
        self.register_buffer("variances", torch.ones(4))
        self.writes = writes

    def forward(self, inputs):
        # torch's counter of changes does not see these.
        normed = F.batch_norm(inputs, self.means, self.variances, training=self.writes)
        return self.layers(normed)


def test_many_examples_go_through_norms_draw_by_draw_on_an_accelerator():
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4))
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Categorical())
    samples = posterior.sample(5).to("meta")
    assert isinstance(Automatic().choose(posterior.runnable, samples, 1000), bbh.Loop)
    # Launches of few examples' kernels would take longer than the kernels.
    assert isinstance(Automatic().choose(posterior.runnable, samples, 10), bbh.Vmap)


def test_inputs_may_be_single_numbers():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, factor, inputs):
            return factor * self.layer(inputs)

    posterior = bbh.methods.deep_ensemble(Scaled(), bbh.likelihoods.Categorical())
    assert posterior((torch.tensor(2.0), torch.randn(5, 4)), posterior.sample(5)).shape == (5, 5, 3)


@pytest.mark.parametrize("writes", [False, True])
def test_recorded_steps_fork_unless_draws_write_to_buffers(writes):
    posterior = bbh.methods.deep_ensemble(Averaging(writes), bbh.likelihoods.Categorical())
    inputs, samples = torch.randn(5, 4), posterior.sample(5)
    execution = Recorded()
    assert execution.forks(posterior.runnable, samples)
    outputs = posterior(inputs, samples, execution=execution)
    assert execution.forks(posterior.runnable, samples) != writes
    assert not execution.forks(posterior.eval().runnable, samples)
    torch.testing.assert_close(outputs, posterior(inputs, samples, execution=bbh.Loop()))
