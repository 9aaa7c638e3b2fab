"""Images are handed to a network with their channels last, if it works with that."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bbh
from network.unusual import Categorical


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


class Viewed(nn.Module):
    def forward(self, hidden):
        return hidden.view(len(hidden), -1)


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


@LAYOUTS
@pytest.mark.parametrize("channels", [2, 3, 6, 8])
def test_gradients_of_strided_one_by_one_convolutions(channels: int):
    """PyTorch 2.13 gets them wrong with channels last, for two to six channels."""
    torch.manual_seed(0)
    network = nn.Conv2d(channels, 8, 1, stride=2)
    posterior = bbh.methods.maximum_a_posteriori(
        nn.Sequential(network, nn.Flatten()), bbh.likelihoods.Categorical()
    )
    images = torch.randn(5, channels, 16, 16)
    for given, run in [
        (images.clone().requires_grad_(), lambda x: posterior(x, posterior.sample(1))[0]),
        (images.double().requires_grad_(), lambda x: network.double()(x).flatten(1)),
    ]:
        outputs = run(given)
        slopes = torch.linspace(-1, 1, outputs.numel()).view_as(outputs).to(outputs)
        outputs.backward(slopes)
        if given.dtype == torch.float32:
            found = given.grad
    torch.testing.assert_close(found, given.grad.float())
