"""fit: precision, large generators."""

import math

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

import bbh
from scenarios import mlp, printed_number
from training.small import assert_same_state, copied, dataset, fit, hypernet, point, sgd


class TestPrecision:
    @pytest.mark.parametrize("make", [point, hypernet], ids=["map", "hypernet"])
    def test_bfloat16(self, make):
        fabric = Fabric(precision="bf16-mixed", accelerator="cpu", devices=1)
        network = mlp()
        torch.manual_seed(3)
        posterior = make(network)
        torch.manual_seed(3)
        history = fit(
            posterior,
            DataLoader(dataset(), 4),
            2,
            fabric=fabric,
            validation=DataLoader(dataset(), 4),
        )
        assert all(value.dtype == torch.float32 for value in posterior.parameters())
        torch.manual_seed(3)
        exact = make(network)
        torch.manual_seed(3)
        expected = fit(exact, DataLoader(dataset(), 4), 2)
        # Eight bits of mantissa: near the exact run, and not equal to it.
        assert history[-1].nll == pytest.approx(expected[-1].nll, rel=0.05)
        assert history[-1].nll != expected[-1].nll

    def test_targets_are_not_rounded(self):
        """1000.5 has no bfloat16: its neighbours are 1000 and 1004."""
        network = nn.Linear(1, 1)
        with torch.no_grad():
            network.weight.zero_()
            network.bias.zero_()
        fabric = Fabric(precision="bf16-mixed", accelerator="cpu", devices=1)
        posterior = point(network, bbh.likelihoods.Gaussian(1.0))
        batch = torch.ones(2, 1), torch.full((2, 1), 1000.5)
        (record,) = fit(posterior, [batch], num_data=2, fabric=fabric)
        expected = 0.5 * 1000.5**2 + 0.5 * math.log(2 * math.pi)
        assert record.nll == pytest.approx(expected, rel=1e-4)

    def half(self, scale):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
        return Fabric(accelerator="cpu", devices=1, plugins=[precision])

    def test_float16_gradients_are_measured_and_clipped_without_the_loss_scale(self):
        network, batch = mlp(), dataset()[:12]
        records, states = [], []
        for fabric in (self.half(1024.0), None):
            posterior = point(network)
            options = {"optimizer": sgd(1.0), "gradient_clip": 0.05, "fabric": fabric}
            records += fit(posterior, [batch], num_data=12, **options)
            states.append(torch.cat([v.detach().flatten() for v in posterior.parameters()]))
        assert records[0].gradient_norm == pytest.approx(records[1].gradient_norm, rel=0.02)
        torch.testing.assert_close(states[0], states[1], rtol=1e-2, atol=2e-3)

    def test_float16_overflow_skips_a_step_instead_of_stopping(self):
        posterior = point(mlp())
        before = copied(posterior)
        history = fit(posterior, [dataset()[:12]], num_data=12, fabric=self.half(2.0**100))
        assert_same_state(posterior.state_dict(), before)
        assert math.isfinite(history[0].gradient_norm)


@pytest.mark.slow
def test_layer_wise_lenet_trains_on_a_24_gibibyte_machine():
    """222 million generator parameters with gradient and Adam's moments: 3.3 GiB, and what a
    step needs besides. Half the machine is left to the user."""
    script = """
import resource, torch, bbh
from scenarios import LeNet
posterior = bbh.methods.bayes_by_hypernet(
    LeNet(), bbh.likelihoods.Categorical(), generator=bbh.generators.LayerWise()
)
batch = (torch.rand(100, 1, 28, 28), torch.arange(100) % 10)
history = bbh.fit(posterior, [batch] * 3, epochs=1, num_data=55_000, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    assert printed_number(script) < 12
