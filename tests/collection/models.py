"""Public model definitions, made small and without downloads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

CLASSES = 3
_SIZE = 32  # pixels; several models divide images by 32
_NARROW = {"channels": (8, 16, 24, 32), "layers": (1, 1, 1, 1)}
_NARROW_REGNET = {"depth": 4, "w0": 8, "wa": 8.0, "wm": 1.4, "group_size": 8}

# Models of timm by name, with what makes them small: every kind of layer stays, widths and depths
# go, since the time of a test is that of calling thousands of operations one by one.
VISION: dict[str, dict[str, Any]] = {
    "resnet10t": _NARROW,
    "resnet18": _NARROW,
    "seresnet18": _NARROW,
    "regnetx_002": _NARROW_REGNET,
    "regnety_002": _NARROW_REGNET,
    "mobilenetv2_035": {},
    "mobilenetv3_small_050": {},
    "efficientnet_lite0": {},
    "mnasnet_small": {},
    "ghostnet_050": {},
    "lcnet_035": {},
    "dla46_c": {"levels": (1, 1, 1, 1, 1, 1), "channels": (8, 8, 16, 16, 24, 32)},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2, 2)},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)},
    "vit_tiny_patch16_224": {
        "img_size": _SIZE,
        "patch_size": 8,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
    },
    "swin_tiny_patch4_window7_224": {
        "img_size": _SIZE,
        "window_size": 4,
        "embed_dim": 24,
        "depths": (1, 1),
        "num_heads": (2, 4),
    },
    "gmlp_ti16_224": {"img_size": _SIZE},
    "mobilevit_xxs": {},
    "edgenext_xx_small": {"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)},
}

_TEXT_SETTINGS: dict[str, Any] = {
    "vocab_size": 40,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
}
# Families of transformers, with what makes them small.
TEXT: dict[str, dict[str, Any]] = {
    "Bert": _ENCODER,
    "Roberta": _ENCODER,
    "Albert": _ENCODER | {"embedding_size": 16},
    "Electra": _ENCODER | {"embedding_size": 16},
    "DistilBert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 48,
        "max_position_embeddings": 20,
    },
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 20},
    "OPT": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 48,
        "max_position_embeddings": 20,
        "word_embed_proj_dim": 32,
    },
    "Llama": _ENCODER | {"num_key_value_heads": 2},
}


class Logits(nn.Module):
    """A model of transformers that takes tokens and gives logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens).logits


def text_model(family: str) -> nn.Module:
    transformers = pytest.importorskip(
        "transformers", reason="needs bayes-by-hypernet[huggingface]"
    )
    settings = getattr(transformers, f"{family}Config")(**_TEXT_SETTINGS | TEXT[family])
    return Logits(getattr(transformers, f"{family}ForSequenceClassification")(settings))


def vision_model(name: str) -> nn.Module:
    timm = pytest.importorskip(
        "timm", reason="needs timm, which is no dependency", exc_type=ImportError
    )
    if not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} has no {name}")
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **VISION[name])
    if name == "gmlp_ti16_224":  # of thirty blocks that are all alike; its function takes no number
        model.blocks = model.blocks[:2]
    return model


def tokens(number: int) -> Tensor:
    return torch.randint(3, 40, (number, 10))


def images(number: int) -> Tensor:
    return torch.randn(number, 3, _SIZE, _SIZE)


# By name: how to make the model, and inputs for it.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    **{family: (lambda family=family: text_model(family), tokens) for family in TEXT},
    **{name: (lambda name=name: vision_model(name), images) for name in VISION},
}
