"""Networks of every kind train, predict and are stored."""

import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

import bbh
from network.unusual import (
    CASES,
    B,
    Categorical,
    LooksAtValues,
    PartlyFrozen,
    over_cases,
    sequences,
    vectors,
)
from scenarios import LSTMNet, mlp, over_methods


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
            assert torch.equal(posterior.frozen()[name], known)
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


def test_recurrent_layers_let_go_of_a_draw():
    """They keep the weights of their last call, which would keep the graph of a whole step."""
    posterior = bbh.methods.bayes_by_hypernet(LSTMNet(), Categorical())
    draw = posterior.sample(1)
    posterior(torch.randint(0, 3, (B, 5)), draw).sum().backward()
    layers = [one for one in posterior.network.modules() if isinstance(one, nn.RNNBase)]
    weights = [weight for layer in layers for weight in layer._flat_weights]
    assert len(weights) == 8
    assert not any(weight.grad_fn for weight in weights)
    generated = weakref.ref(draw["lstm.weight_ih_l0"])
    del draw, weights
    assert generated() is None
