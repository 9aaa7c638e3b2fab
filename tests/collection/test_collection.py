"""Every method on public models: fit, predict, save and load, on a GPU where there is one."""

from functools import cache

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.methods import registered
from collection.models import CLASSES, MODELS

# What others warn about is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
FAST = "DistilBert"
_EXAMPLES = 4
# Small numbers of members, and the generator that is meant for networks of any size.
_OPTIONS = {
    "deep_ensemble": {"num_members": 2},
    "bayes_by_hypernet": {"generator": bbh.generators.Directions()},
    "mixture": {"num_members": 2, "generator": bbh.generators.Directions()},
}


@pytest.mark.parametrize("method", registered())
@pytest.mark.parametrize(
    "model",
    [name if name == FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_public_models(model, method, tmp_path):
    network, make_inputs = made(model), MODELS[model][1]
    posterior = registered()[method](
        network, bbh.likelihoods.Categorical(), **_OPTIONS.get(method, {})
    )
    inputs = make_inputs(_EXAMPLES)
    data = TensorDataset(inputs, torch.arange(_EXAMPLES) % CLASSES)
    before = {name: value.clone() for name, value in posterior.weights.named_parameters()}
    # One step, which is not recorded: that pays off in longer training.
    bbh.fit(
        posterior,
        DataLoader(data, batch_size=_EXAMPLES),
        epochs=1,
        progress=False,
        compare=False,
        cuda_graph=False,
    )
    after = dict(posterior.weights.named_parameters())
    assert any(not torch.equal(after[name].cpu(), value) for name, value in before.items())
    bbh.save(posterior, tmp_path / "posterior")
    again = bbh.load(tmp_path / "posterior", network).to(posterior.device)
    first, second = (_predicted(one, inputs) for one in (posterior, again))
    assert first.shape == (_EXAMPLES, CLASSES)
    torch.testing.assert_close(first.sum(1), torch.ones(_EXAMPLES))
    # The order of sums on a GPU is not always the same.
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


@cache
def made(model):
    """The network, made once for all methods: none of them changes it."""
    return MODELS[model][0]()


def _predicted(posterior, inputs):
    torch.manual_seed(3)
    return bbh.predict(posterior, inputs, 2).mean
