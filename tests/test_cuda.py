"""The same on a GPU: skipped where there is none."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import BatchNormNet, LeNet, LSTMNet, SmallLeNet, TransformerNet, mlp, over_methods

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(12, 4)),
    "lenet": (SmallLeNet, lambda: torch.randn(12, 1, 6, 6)),
    "batch norm": (BatchNormNet, lambda: torch.randn(12, 1, 6, 6)),
    "lstm": (LSTMNet, lambda: torch.randint(0, 3, (12, 5))),
    "transformer": (TransformerNet, lambda: torch.randint(0, 3, (12, 5))),
}


@over_methods
@pytest.mark.parametrize(("make", "inputs"), NETWORKS.values(), ids=NETWORKS.keys())
def test_trains_on_the_gpu_and_predicts_as_on_the_cpu(method, make, inputs, tmp_path):
    posterior = method(make(), bbh.likelihoods.Categorical())
    examples = inputs()
    loader = DataLoader(TensorDataset(examples, torch.arange(12) % 3), batch_size=4)
    history = bbh.fit(posterior, loader, epochs=2, progress=False)
    assert posterior.device.type == "cuda"
    assert len(history) == 2
    assert bbh.predict(posterior, examples, num_samples=7).mean.device.type == "cpu"
    samples = {name: value.detach() for name, value in posterior.sample(4).items()}
    with torch.no_grad():
        on_gpu = posterior(examples.cuda(), samples).cpu()
        posterior.cpu()
        on_cpu = posterior(examples, {name: value.cpu() for name, value in samples.items()})
    # Single precision, and TF32 in convolutions: about 1e-3 relative.
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_layer_wise_lenet_trains(precision):
    from lightning_fabric import Fabric

    posterior = bbh.methods.bayes_by_hypernet(
        LeNet(), bbh.likelihoods.Categorical(), generator=bbh.generators.LayerWise()
    )
    images, labels = torch.randn(200, 1, 28, 28), torch.arange(200) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=100)
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    history = bbh.fit(posterior, loader, epochs=3, fabric=fabric, progress=False)
    assert history[-1].total < history[0].total


def test_draws_are_the_same_for_all_batches_when_made_again():
    posterior = bbh.methods.bayes_by_hypernet(mlp(), bbh.likelihoods.Categorical()).cuda()
    one = torch.randn(1, 4)
    repeated = one.expand(300, 4)
    predictive = bbh.predict(posterior, repeated, 50, batch_size=7, memory_limit=20_000)
    torch.testing.assert_close(predictive.mean, predictive.mean[:1].expand(300, 3))
