"""What cannot work says so at once and offers a way out."""

import pytest
import torch
from torch import nn

import bbh
from network.unusual import B, Categorical, vectors
from scenarios import mlp, over_methods


def old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.Linear(4, 4), nn.utils.weight_norm(nn.Linear(4, 3)))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))


class TestRefused:
    def within(self, part):
        return nn.Sequential(nn.Linear(4, 4), part)

    @over_methods
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
    def test_compiled_by_torch_jit(self, method):
        scripted = torch.jit.script(nn.Linear(4, 3))
        with pytest.raises(TypeError, match=r"torch\.jit.*Python module"):
            method(scripted, Categorical())
        with pytest.raises(TypeError, match=r"module '1' .*torch\.jit"):
            method(self.within(scripted), Categorical())
        traced = torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4))
        with pytest.raises(TypeError, match=r"torch\.jit"):
            method(traced, Categorical())

    @over_methods
    def test_wrapped_for_several_devices(self, method):
        with pytest.raises(TypeError, match=r"DataParallel.*Pass network\.module"):
            method(nn.DataParallel(mlp()), Categorical())
        with pytest.raises(TypeError, match=r"module '1' \(DataParallel\)"):
            method(self.within(nn.DataParallel(nn.Linear(4, 3))), Categorical())

    @over_methods
    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_lazy_parameters(self, method):
        network = self.within(nn.LazyLinear(3))
        with pytest.raises(TypeError, match=r"module '1' .*'weight'.*Run one batch"):
            method(network, Categorical())
        network(vectors())
        assert bbh.predict(method(network, Categorical()), vectors(), 2).mean.shape == (B, 3)

    @pytest.mark.filterwarnings("ignore:Lazy modules")
    def test_lazy_buffers(self):
        with pytest.raises(TypeError, match=r"module '1' .*Run one batch"):
            bbh.methods.maximum_a_posteriori(
                self.within(nn.LazyBatchNorm1d(affine=False)), Categorical()
            )

    @over_methods
    def test_complex_parameters(self, method):
        with pytest.raises(TypeError, match=r"module 'inner' .*'phase' is complex.*requires_grad_"):
            method(Complex(), Categorical())

    def test_a_frozen_complex_parameter_is_fine(self):
        network = Complex()
        network.layer = nn.Linear(4, 3)
        network.inner.phase.requires_grad_(False)
        network.forward = None
        posterior = bbh.methods.maximum_a_posteriori(
            network,
            Categorical(),
            forward=lambda module, inputs: module.layer(inputs) * module.inner.phase.real,
        )
        assert bbh.predict(posterior, vectors()).mean.shape == (B, 3)

    @over_methods
    def test_nothing_to_train(self, method):
        for network in (nn.ReLU(), mlp().requires_grad_(False)):
            with pytest.raises(ValueError, match=r"no trainable parameter.*Unfreeze"):
                method(network, Categorical())

    @over_methods
    def test_weight_norm_of_old(self, method):
        with pytest.raises(TypeError, match=r"torch\.nn\.utils\.parametrizations"):
            method(old_weight_norm(), Categorical())

    def test_a_distribution_that_leaves_weights_out(self):
        posterior = bbh.methods.bayes_by_backprop(nn.Linear(4, 3), Categorical())
        with pytest.raises(ValueError, match=r"does not cover \['0\.bias'"):
            bbh.Posterior(mlp(), posterior.weights, posterior.prior, Categorical())
