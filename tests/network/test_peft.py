"""Posteriors over the factors of LoRA adapters that peft puts into a model of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.storage import StorageError
from scenarios import METHODS

peft = pytest.importorskip("peft", reason="needs bayes-by-hypernet[huggingface]")
transformers = pytest.importorskip("transformers", reason="needs bayes-by-hypernet[huggingface]")


class Classifier(nn.Module):
    """A tiny transformer with random weights, LoRA in its attention, and logits as output."""

    def __init__(self):
        super().__init__()
        settings = transformers.BertConfig(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=8,
            num_labels=3,
        )
        model = transformers.BertForSequenceClassification(settings)
        lora = peft.LoraConfig(r=2, target_modules=["query", "value"])
        self.model: Any = peft.get_peft_model(model, lora)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits


def texts() -> DataLoader[Any]:
    tokens = torch.randint(0, 20, (12, 6))
    return DataLoader(TensorDataset(tokens, tokens[:, 0] % 3), batch_size=6)


@pytest.mark.parametrize("name", ["bayes_by_hypernet", "bayes_by_backprop", "mixture"])
def test_a_posterior_over_lora_factors(name, tmp_path):
    method = METHODS[name]
    network = Classifier()
    with torch.no_grad():
        expected = network.eval()(torch.arange(6)[None])
    posterior = method(network.train(), bbh.likelihoods.Categorical(), bayesian="*lora_*")
    assert all(".lora_" in name for name in posterior.weights.shapes)
    assert sum(shape.numel() for shape in posterior.weights.shapes.values()) == 2 * 4 * 2 * 16
    assert all(".lora_" not in name for name in posterior.frozen())
    start = posterior.eval()(torch.arange(6)[None], posterior.sample(1))[0]
    assert start.shape == expected.shape
    bbh.fit(posterior, texts(), epochs=1, progress=False, compare=False)
    bbh.save(posterior, tmp_path / "adapter")
    again = bbh.load(tmp_path / "adapter", network)
    predictions: list[Tensor] = []
    for one in (posterior, again):
        torch.manual_seed(3)
        predictions.append(bbh.predict(one, texts(), 4).mean)
    assert torch.equal(*predictions)
    with pytest.raises(StorageError, match="frozen parameters have other values"):
        bbh.load(tmp_path / "adapter", Classifier())


def test_members_start_as_the_model_without_adapters():
    network = Classifier().eval()
    tokens = torch.arange(6)[None]
    posterior = bbh.methods.deep_ensemble(
        network, bbh.likelihoods.Categorical(), num_members=3, bayesian="*lora_*"
    )
    outputs = posterior.eval()(tokens, posterior.sample(3))
    with torch.no_grad():
        torch.testing.assert_close(outputs, network(tokens).expand(3, 1, 3))
    for name, factors in posterior.sample(3).items():
        different = {tuple(one.flatten().tolist()) for one in factors}
        assert len(different) == (3 if "lora_A" in name else 1)


def test_further_members_of_a_trained_adapter_start_without_it():
    network = Classifier().eval()
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        plain = network(tokens)
        for name, value in network.named_parameters():
            if "lora_B" in name:
                value.fill_(0.3)
        trained = network(tokens)
    bayesian = {"bayesian": "*lora_*", "num_members": 2}
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Categorical(), **bayesian)
    outputs = posterior.eval()(tokens, posterior.sample(2))
    torch.testing.assert_close(outputs, torch.stack([trained, plain]))
    before = {name: value.clone() for name, value in network.named_parameters()}
    bbh.methods.deep_ensemble(  # a frozen adapter stays as it is
        network.requires_grad_(True),
        bbh.likelihoods.Categorical(),
        num_members=2,
        bayesian="*classifier*",
        freeze_rest=True,
    )
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())
