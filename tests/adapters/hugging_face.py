"""Small Hugging Face models with random weights, and token sequences to train them on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers: Any = pytest.importorskip(
    "transformers", reason="no transformers: pip install 'bayes-by-hypernet[huggingface]'"
)

VOCABULARY, LENGTH = 20, 6


def bert(**settings: Any) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        **({"num_labels": 2} | settings),
    )
    return transformers.BertForSequenceClassification(config)


def distil_bert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=8,
        n_layers=1,
        n_heads=2,
        hidden_dim=16,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    return transformers.DistilBertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=8,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2ForSequenceClassification(config)


MODELS = {"bert": bert, "distil_bert": distil_bert, "gpt2": gpt2}


def sentences(number: int) -> dict[str, Tensor]:
    """Sentences of different lengths, as tokenizers give them; the first word decides the class."""
    ids = torch.randint(3, VOCABULARY, (number, LENGTH))
    lengths = torch.randint(2, LENGTH + 1, (number, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    return {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "labels": (ids[:, 0] >= VOCABULARY // 2).long(),
    }


def examples(data: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The sentences one by one, as a data set."""
    return [{key: value[i] for key, value in data.items()} for i in range(len(data["labels"]))]
