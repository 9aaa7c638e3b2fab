"""A Trainer with two processes: each draws weights of its own, also after an interruption."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from scenarios import mlp
from training.small import assert_same_state
from training.together import together

pl = pytest.importorskip(
    "lightning.pytorch", reason="no Lightning: pip install 'bayes-by-hypernet[lightning]'"
)
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)


def trained(folder, epochs, path=None):
    """Trains in this process, one of two; its weights, and a draw that comes after training."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    warnings.simplefilter("ignore")  # Lightning's advice
    torch.manual_seed(0)
    inputs = torch.randn(24, 4)
    loader = DataLoader(TensorDataset(inputs, torch.arange(24) % 3), batch_size=6)
    posterior = bbh.methods.bayes_by_backprop(mlp(), bbh.likelihoods.Categorical())
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, filename=str(epochs))],
    )
    trainer.fit(bbh.adapters.LightningPosterior(posterior), loader, ckpt_path=path)
    return posterior.state_dict(), torch.randn(3)


def whole_and_resumed(fabric, folder):
    """Four epochs at once, and two and two with a checkpoint in between."""
    del fabric  # it has joined the processes
    whole = trained(folder / "whole", 4)
    trained(folder / "part", 2)
    return whole, trained(folder / "part", 4, folder / "part" / "2.ckpt")


def test_processes_draw_differently_and_go_on_bit_for_bit(tmp_path):
    first, second = together(whole_and_resumed, tmp_path)
    (whole, draw), (resumed, draw_after) = first
    other_draw, other_draw_after = second[0][1], second[1][1]
    assert_same_state(whole, resumed)
    assert_same_state(whole, second[0][0])  # they share gradients
    torch.testing.assert_close(draw, draw_after, rtol=0, atol=0)
    torch.testing.assert_close(other_draw, other_draw_after, rtol=0, atol=0)
    assert not torch.equal(draw, other_draw)
