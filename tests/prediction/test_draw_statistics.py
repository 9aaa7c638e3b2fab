"""Every weight draw is evaluated with batch-norm statistics of its own."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.likelihoods import Categorical, Gaussian
from scenarios import BatchNormNet, mlp


def deep_norms() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.BatchNorm2d(5),
        nn.Flatten(),
        nn.Linear(20, 6),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    )


def wide(network: nn.Module, **settings) -> bbh.Posterior:
    return bbh.methods.bayes_by_backprop(network, Categorical(), initial_scale=0.3, **settings)


def images(number=40) -> torch.Tensor:
    return torch.randn(number, 1, 6, 6) * 2 + 1


def one(samples, index: int) -> dict[str, torch.Tensor]:
    return {name: value[index].detach() for name, value in samples.items()}


@pytest.mark.parametrize("execution", [bbh.Loop(), bbh.Vmap(), None], ids=str)
class TestStatistics:
    def test_are_those_that_pytorch_estimates_for_the_draw(self, execution):
        posterior, inputs = wide(deep_norms(), execution=execution), images()
        posterior.keep_reference(inputs)
        samples = posterior.eval().sample(3)
        for index in range(3):
            network = deep_norms()
            network.load_state_dict(one(samples, index))
            update_bn([inputs], network)
            for name, value in network.named_buffers():
                torch.testing.assert_close(samples[name][index], value, rtol=1e-4, atol=1e-5)

    def test_predictions_are_those_of_networks_with_them(self, execution):
        posterior, inputs, new = wide(deep_norms(), execution=execution), images(), images(7)
        posterior.keep_reference(inputs)
        torch.manual_seed(1)
        draws = bbh.predict(posterior, new, 4, keep_draws=True).draws
        # The draws that predict makes: it draws once to measure memory, then chooses seeds.
        torch.manual_seed(1)
        posterior.weights.eval().sample(1)
        torch.manual_seed(int(torch.randint(2**62, (4,))[0]))
        samples = posterior.weights.sample(4)
        for index in range(4):
            network = deep_norms()
            network.load_state_dict(one(samples, index), strict=False)
            update_bn([inputs], network)
            expected = network.eval()(new).softmax(-1)
            torch.testing.assert_close(draws[index], expected.detach(), rtol=1e-4, atol=1e-5)


def test_a_mean_and_a_variance_by_hand():
    posterior, inputs = wide(BatchNormNet()), images()
    posterior.keep_reference(inputs)
    samples = posterior.eval().sample(2)
    for index in range(2):
        hidden = F.conv2d(inputs, samples["conv.weight"][index], samples["conv.bias"][index])
        columns = hidden.transpose(0, 1).flatten(1).detach()
        torch.testing.assert_close(samples["norm.running_mean"][index], columns.mean(1))
        torch.testing.assert_close(samples["norm.running_var"][index], columns.var(1))


def test_instance_norm_keeps_means_over_examples():
    network = nn.Sequential(nn.Conv1d(1, 3, 2), nn.InstanceNorm1d(3, track_running_stats=True))
    posterior, inputs = wide(network), torch.randn(8, 1, 10) + 2
    posterior.keep_reference(inputs)
    samples = posterior.eval().sample(2)
    for index in range(2):
        hidden = F.conv1d(inputs, samples["0.weight"][index], samples["0.bias"][index]).detach()
        torch.testing.assert_close(samples["1.running_mean"][index], hidden.mean((0, 2)))
        torch.testing.assert_close(samples["1.running_var"][index], hidden.var(2).mean(0))


def test_a_layer_used_twice_has_the_mean_of_its_uses():
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)
            self.norm = nn.BatchNorm1d(3)
            self.unused = nn.BatchNorm1d(3)

        def forward(self, left, right):
            return self.norm(self.linear(left)) - self.norm(self.linear(right))

    posterior, pair = wide(Twins()), (torch.randn(9, 2), torch.randn(9, 2) + 3)
    posterior.keep_reference(pair)
    samples = posterior.eval().sample(1)
    each = [F.linear(x, samples["linear.weight"][0], samples["linear.bias"][0]) for x in pair]
    mean = (each[0].mean(0) + each[1].mean(0)) / 2
    torch.testing.assert_close(samples["norm.running_mean"][0], mean.detach())
    assert "unused.running_mean" not in samples


def test_reference_inputs_that_exceed_the_memory_are_divided():
    posterior, inputs = wide(BatchNormNet()), images(96)
    posterior.keep_reference(inputs)
    samples = posterior.eval().sample(2, memory_limit=1)
    for index in range(2):
        hidden = F.conv2d(inputs, samples["conv.weight"][index], samples["conv.bias"][index])
        variances = [part.transpose(0, 1).flatten(1).var(1) for part in hidden.split(32)]
        expected = torch.stack(variances).mean(0).detach()
        torch.testing.assert_close(samples["norm.running_var"][index], expected)
    assert samples["norm.num_batches_tracked"].tolist() == [1, 1]


def test_draws_from_elsewhere_are_completed():
    posterior, inputs = wide(BatchNormNet()), images()
    posterior.keep_reference(inputs)
    bare = posterior.eval().weights.sample(3)
    assert "norm.running_mean" not in bare
    found = bbh.predict(posterior, inputs, samples=bare).mean
    expected = bbh.predict(posterior, inputs, samples=posterior.with_statistics(bare)).mean
    assert torch.equal(found, expected)
    shared = posterior(inputs, bare).softmax(-1).mean(0)
    assert not torch.allclose(found, shared.detach(), atol=1e-3)


def test_drawing_has_gradients_and_uses_the_same_random_numbers():
    posterior = wide(BatchNormNet()).eval()
    torch.manual_seed(3)
    bare, after = posterior.weights.sample(2), torch.rand(1)
    posterior.keep_reference(images())
    torch.manual_seed(3)
    samples = posterior.sample(2)
    assert torch.equal(torch.rand(1), after)
    assert all(torch.equal(samples[name], value) for name, value in bare.items())
    posterior(images(), samples).sum().backward()
    assert posterior.weights.parts[0].loc["conv.weight"].grad.abs().sum() > 0


def test_training_is_left_alone():
    posterior = wide(BatchNormNet())
    posterior.keep_reference(images())
    assert posterior.train().sample(2).keys() == posterior.weights.shapes.keys()


class TestWhoNeedsThem:
    @pytest.mark.parametrize(
        ("method", "settings", "expected"),
        [
            ("maximum_a_posteriori", {}, False),
            ("deep_ensemble", {"num_members": 2}, False),
            # Members share the buffers if they share layers.
            ("deep_ensemble", {"num_members": 2, "bayesian": "conv"}, True),
            ("bayes_by_backprop", {}, True),
            ("bayes_by_backprop", {"bayesian": "head"}, True),
            ("bayes_by_hypernet", {}, True),
            ("mc_dropout", {}, False),
            ("stochastic_weight_averaging", {}, True),
        ],
    )
    def test_by_method(self, method, settings, expected):
        make = bbh.methods.registered()[method]
        assert make(BatchNormNet(), Categorical(), **settings).needs_reference() is expected
        assert not make(mlp(), Categorical(), **{**settings, "bayesian": None}).needs_reference()

    def test_not_networks_whose_own_dropout_is_the_only_randomness(self):
        network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        assert not bbh.methods.mc_dropout(network, Categorical()).needs_reference()

    def test_not_layers_in_evaluation_mode(self, caplog):
        network = BatchNormNet()
        network.norm.running_mean.fill_(7.0)
        network.norm.eval()
        posterior = wide(network)
        posterior.keep_reference(images())
        assert not posterior.needs_reference()
        bbh.predict(posterior, images(), 2)
        assert "norm.running_mean" not in posterior.eval().sample(2)
        assert not caplog.records

    def test_not_layers_without_statistics(self):
        network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
        assert not wide(network).needs_reference()


class TestWithoutReference:
    def test_a_warning_comes_once_and_draws_share_statistics(self, caplog):
        posterior = wide(BatchNormNet())
        with caplog.at_level(logging.WARNING, logger="bbh"):
            bbh.predict(posterior, images(), 2)
            bbh.evaluate(posterior, [(images(3), torch.arange(3))], 2)
        (record,) = caplog.records
        assert "keep_reference" in record.message
        assert "norm.running_mean" not in posterior.eval().sample(2)

    def test_one_example_has_no_variance(self):
        posterior = wide(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
        posterior.keep_reference(torch.randn(1, 4))
        with pytest.raises(ValueError, match="'1' has one value per channel"):
            bbh.predict(posterior, torch.randn(5, 4), 2)


class TestKinds:
    def check(self, posterior, inputs, tmp_path, network):
        """The inputs come back as they were, also from a file and from a copy."""
        posterior.keep_reference(inputs)
        bbh.save(posterior, tmp_path / "file")
        for other in (posterior, copy.deepcopy(posterior), bbh.load(tmp_path / "file", network)):
            (found,) = other.reference.batches()
            assert type(found) is type(inputs)
            parts = found.items() if isinstance(found, dict) else enumerate(found)
            for key, part in parts:
                assert (part is None and inputs[key] is None) or torch.equal(part, inputs[key])
        posterior.keep_reference(None)
        assert not posterior.reference
        assert not any("reference" in name for name in posterior.state_dict())

    def test_tuples_and_dictionaries(self, tmp_path):
        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 3)
                self.norm = nn.BatchNorm1d(3)

            def forward(self, first, second):
                return self.norm(self.linear(first - second))

        parts = torch.randn(2, 8, 4).unbind()
        self.check(wide(Sum()), parts, tmp_path, Sum())
        self.check(wide(Sum()), dict(zip(("first", "second"), parts, strict=True)), tmp_path, Sum())

    def test_packed_sequences(self, tmp_path):
        class Pooled(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(2, 3)
                self.norm = nn.BatchNorm1d(3)

            def forward(self, packed: PackedSequence):
                return self.norm(self.linear(packed.data))[:2]

        lengths = torch.tensor([2, 5])
        packed = pack_padded_sequence(
            torch.randn(2, 5, 2), lengths, batch_first=True, enforce_sorted=False
        )
        posterior = wide(Pooled())
        posterior.keep_reference(packed)
        samples = posterior.eval().sample(2)
        for index in range(2):
            own = one(samples, index)
            hidden = F.linear(packed.data, own["linear.weight"], own["linear.bias"])
            torch.testing.assert_close(samples["norm.running_mean"][index], hidden.mean(0).detach())
        self.check(posterior, packed, tmp_path, Pooled())

    def test_objects_are_refused(self):
        with pytest.raises(TypeError, match="cannot hold a Gaussian"):
            wide(BatchNormNet()).keep_reference((images(), Gaussian()))


def test_loaded_posteriors_predict_the_same(tmp_path):
    posterior = bbh.methods.bayes_by_hypernet(BatchNormNet(), Categorical())
    posterior.keep_reference(images())
    bbh.save(posterior, tmp_path / "file")
    loaded = bbh.load(tmp_path / "file", BatchNormNet())
    torch.manual_seed(2)
    expected = bbh.predict(posterior, images(5), 6).mean
    torch.manual_seed(2)
    assert torch.equal(bbh.predict(loaded, images(5), 6).mean, expected)


def test_attacks_and_the_averaged_network_use_them():
    posterior, inputs = wide(BatchNormNet()), images(6).sigmoid()
    posterior.keep_reference(images().sigmoid())
    samples = posterior.eval().sample(3)
    targets = torch.arange(6) % 3
    probs = torch.stack(
        [
            functional_call(BatchNormNet().eval(), one(samples, index), (inputs,)).softmax(-1)
            for index in range(3)
        ]
    ).mean(0)
    bare = {name: samples[name] for name in posterior.weights.shapes}
    attacked = bbh.attacks.FGSM()(posterior, inputs, targets, 0.1, samples=bare)
    expected = -probs[torch.arange(6), targets].log().double()
    torch.testing.assert_close(attacked.clean_loss, expected, rtol=1e-4, atol=1e-5)
    network = bbh.adapters.AveragedNetwork(posterior, samples=bare)
    torch.testing.assert_close(network(inputs), probs.log(), rtol=1e-4, atol=1e-5)


def test_wine_with_a_multilayer_perceptron():
    from sklearn.datasets import load_wine

    inputs, targets = (torch.tensor(part) for part in load_wine(return_X_y=True))
    inputs = inputs.float()  # not standardised: batch norm comes first
    network = nn.Sequential(
        nn.BatchNorm1d(13), nn.Linear(13, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3)
    )
    posterior = wide(network)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=22, shuffle=True)
    bbh.fit(posterior, loader, epochs=15, learning_rate=0.02, progress=False)
    assert bbh.evaluate(posterior, loader, 30)["error"] <= 5
