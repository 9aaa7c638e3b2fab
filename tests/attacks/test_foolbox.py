"""The averaged predictive as a network of its own, for Foolbox."""

import sys

import pytest
import torch
from torch import nn

import bbh
from attacks.linear import (
    LABELS,
    Categorical,
    closed_form_gradient,
    images,
    linear_ensemble,
    over_norms,
)
from bbh.adapters import AveragedNetwork, foolbox_model
from bbh.attacks import (
    FGSM,
    LInf,
    Norm,
)
from scenarios import SmallLeNet, dropout_mlp, mlp


class TestFoolbox:
    def test_averaged_network_is_the_predictive_and_its_gradient(self):
        posterior, weight, bias = linear_ensemble()
        network = AveragedNetwork(posterior)
        inputs = images().requires_grad_()
        outputs = network(inputs)
        torch.testing.assert_close(outputs.exp(), bbh.predict(posterior, inputs.detach()).mean)
        loss = nn.functional.cross_entropy(outputs, LABELS, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, inputs)
        expected = closed_form_gradient(weight, bias, inputs.detach(), LABELS)
        torch.testing.assert_close(gradient, expected.float())
        assert not list(network.parameters())

    def test_averaged_network_is_one_function_also_with_dropout(self):
        network = AveragedNetwork(bbh.methods.mc_dropout(dropout_mlp(), Categorical()), 4)
        inputs = images()
        torch.testing.assert_close(network(inputs), network(inputs), rtol=0, atol=0)

    @over_norms
    def test_its_fgsm_equals_ours(self, norm: Norm):
        foolbox = pytest.importorskip("foolbox", reason="needs the extra foolbox")
        inputs = torch.rand(6, 1, 5, 5)
        theirs = (
            foolbox.attacks.LinfFastGradientAttack()
            if isinstance(norm, LInf)
            else foolbox.attacks.L2FastGradientAttack()
        )
        for method in (bbh.methods.maximum_a_posteriori, bbh.methods.deep_ensemble):
            posterior = method(SmallLeNet(), Categorical())
            expected = theirs.run(foolbox_model(posterior), inputs, LABELS, epsilon=0.2)
            ours = FGSM(norm=norm)(posterior, inputs, LABELS, 0.2)
            torch.testing.assert_close(ours.inputs, expected)

    def test_says_how_to_install_it(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setitem(sys.modules, "foolbox", None)
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ImportError, match=r"pip install 'bayes-by-hypernet\[foolbox\]'"):
            foolbox_model(posterior)

    def test_needs_classes(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), bbh.likelihoods.Gaussian())
        with pytest.raises(TypeError, match=r"need the likelihood Categorical.*has Gaussian"):
            AveragedNetwork(posterior)
