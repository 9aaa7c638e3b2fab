"""What differs between training and evaluation: weights per example, modules put into eval()."""

import pytest
import torch
from torch import nn

import bbh
from bbh.per_example import PerExampleWeight, Sampling
from network.unusual import CASES, B, Categorical, vectors
from scenarios import mlp


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
