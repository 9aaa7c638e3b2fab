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


def test_slow_packages_wait_until_they_are_needed():
    code = (
        "import sys, torch, bbh\n"
        "posterior = bbh.methods.bayes_by_hypernet(\n"
        "    torch.nn.Linear(2, 3), bbh.likelihoods.Categorical())\n"
        "bbh.predict(posterior, torch.zeros(5, 2), 10)\n"
        "print([name for name in ('lightning_fabric', 'sklearn', 'matplotlib', 'rich')\n"
        "       if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
