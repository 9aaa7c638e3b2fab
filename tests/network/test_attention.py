"""Networks that call scaled_dot_product_attention, with all draws at once."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import bbh

# On a CPU the flash kernel has no batching rule, and vmap takes a loop of its own.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
kernels = torch.backends.cuda


class CausalAttention(nn.Module):
    """One layer of attention as in Llama: causal, without dropout; it notes allowed kernels."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(16, 48)
        self.allowed = []

    def forward(self, inputs):
        self.allowed.append((kernels.mem_efficient_sdp_enabled(), kernels.cudnn_sdp_enabled()))
        parts = self.projection(inputs).unflatten(-1, (3, 2, 8)).movedim(-3, 0).transpose(-2, -3)
        return scaled_dot_product_attention(*parts, is_causal=True).transpose(-2, -3).flatten(-2)


def gradients(device, execution):
    """Gradients of all parameters through several draws, and the kernels that were allowed."""
    torch.manual_seed(0)
    network = CausalAttention()
    posterior = bbh.methods.bayes_by_backprop(network, bbh.likelihoods.Gaussian()).to(device)
    samples = posterior.sample(3)
    outputs = posterior(torch.randn(2, 5, 16).to(device), samples, execution=execution)
    outputs.square().mean().backward()
    found = {name: value.grad for name, value in posterior.weights.named_parameters()}
    return found, posterior.network.allowed


def compare_gradients(device):
    one_by_one, _ = gradients(device, bbh.Loop())
    together, _ = gradients(device, bbh.Vmap())
    assert all(value.abs().sum() > 0 for value in one_by_one.values())
    for name, value in one_by_one.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-5)


def test_gradients_of_all_draws_at_once_are_those_of_one_after_the_other():
    compare_gradients("cpu")


def test_kernels_without_gradients_under_vmap_are_left_out_where_gradients_are_needed():
    before = kernels.mem_efficient_sdp_enabled(), kernels.cudnn_sdp_enabled()
    assert gradients("cpu", bbh.Vmap())[1] == [(False, False)]
    assert gradients("cpu", bbh.Loop())[1] == [before] * 3
    with torch.no_grad():
        posterior = bbh.methods.bayes_by_backprop(CausalAttention(), bbh.likelihoods.Gaussian())
        posterior(torch.randn(2, 5, 16), posterior.sample(3), execution=bbh.Vmap())
    assert posterior.network.allowed == [before]
    assert (kernels.mem_efficient_sdp_enabled(), kernels.cudnn_sdp_enabled()) == before
