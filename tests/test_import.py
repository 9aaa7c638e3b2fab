"""What importing the package costs and offers."""

import subprocess
import sys

import pytest

import bbh


def test_every_public_name_is_there():
    for name in bbh.__all__:
        assert getattr(bbh, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = bbh.fitt


PREDICTING = """
import torch, bbh
posterior = bbh.methods.bayes_by_hypernet(torch.nn.Linear(2, 3), bbh.likelihoods.Categorical())
bbh.predict(posterior, torch.zeros(5, 2), 10)
"""


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        (PREDICTING, ("lightning_fabric", "sklearn", "matplotlib", "rich")),
        # What --help needs, and a shell that completes a word.
        (
            "import bbh_studies.cli",
            ("lightning_fabric", "sklearn", "matplotlib", "scipy", "torchmetrics"),
        ),
        # What the command starts with, where the extra may not be installed.
        ("import bbh_studies.entry", ("bbh", "torch", "rich", "typer")),
    ],
    ids=["predicting", "command line", "entry"],
)
def test_slow_packages_wait_until_they_are_needed(code, slow):
    code += f"\nimport sys; print([name for name in {slow} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
