"""Every method on public models: fit, predict, save and load, on a GPU where there is one."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.methods import registered
from collection.models import CLASSES, MODELS

# What others warn about is not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")
FAST = "DistilBert"
_BATCH = 4
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
    make_network, make_inputs = MODELS[model]
    network = make_network()
    posterior = registered()[method](
        network, bbh.likelihoods.Categorical(), **_OPTIONS.get(method, {})
    )
    inputs = make_inputs(2 * _BATCH)
    data = TensorDataset(inputs, torch.arange(len(inputs)) % CLASSES)
    # Recording a step pays off in longer training.
    history = bbh.fit(
        posterior,
        DataLoader(data, batch_size=_BATCH),
        epochs=1,
        progress=False,
        compare=False,
        cuda_graph=False,
    )
    assert history[-1].step == 2
    bbh.save(posterior, tmp_path / "posterior")
    again = bbh.load(tmp_path / "posterior", make_network()).to(posterior.device)
    first, second = (_predicted(one, inputs[:_BATCH]) for one in (posterior, again))
    assert first.shape == (_BATCH, CLASSES)
    torch.testing.assert_close(first.sum(1), torch.ones(_BATCH))
    # The order of sums on a GPU is not always the same.
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def _predicted(posterior, inputs):
    torch.manual_seed(3)
    return bbh.predict(posterior, inputs, 2).mean
