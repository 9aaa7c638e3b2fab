"""Batch norm: running statistics in training, and statistics that are refreshed for draws."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bbh
from network.unusual import Categorical, vectors
from scenarios import METHODS, BatchNormNet, mlp, over_methods


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
