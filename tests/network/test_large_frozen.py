"""A small posterior in a large frozen network costs what the small part costs."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.storage import StorageError
from scenarios import METHODS, over_methods


class Adapter(nn.Module):
    """A frozen layer and a low-rank change to it, whose second factor begins at zero."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.up(self.down(inputs))


WIDTH = 250


def adapted() -> nn.Module:
    """About 130,000 frozen parameters and 1,500 others."""
    return nn.Sequential(
        nn.Linear(4, WIDTH).requires_grad_(False),
        nn.ReLU(),
        Adapter(nn.Linear(WIDTH, WIDTH)),
        nn.ReLU(),
        Adapter(nn.Linear(WIDTH, WIDTH)),
        nn.Linear(WIDTH, 3).requires_grad_(False),
    )


def posterior_of(method: Any, network: nn.Module) -> bbh.Posterior[Any]:
    return method(network, bbh.likelihoods.Categorical())


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), batch_size=4)


def frozen_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: v for name, v in network.named_parameters() if not v.requires_grad}


@over_methods
def test_frozen_parameters_are_the_networks_own(method):
    network = adapted()
    before = copy.deepcopy(network.state_dict())
    posterior = posterior_of(method, network)
    own = frozen_of(network)
    assert posterior.frozen().keys() == own.keys()
    bbh.fit(posterior, loader(), epochs=1, progress=False, compare=False)
    for name, value in posterior.frozen().items():
        assert value.data_ptr() == own[name].data_ptr()
        assert not value.requires_grad
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


@over_methods
def test_neither_constructor_nor_step_nor_prediction_copies_a_frozen_matrix(method):
    network = adapted()
    inputs, targets = next(iter(loader()))

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            own = {value.data_ptr() for value in network.parameters()}
            for one in result if isinstance(result, tuple | list) else [result]:
                if isinstance(one, Tensor) and one.shape[-2:] == (WIDTH, WIDTH):
                    # Transposed and detached views of a frozen matrix are no copies.
                    assert one.is_meta or one.data_ptr() in own, func
            return result

    generator = {"generator": bbh.generators.Directions()}
    uses = {"bayes_by_hypernet": generator, "mixture": generator}
    name = next(one for one in METHODS if METHODS[one] is method)
    with Watching():
        posterior = method(network, bbh.likelihoods.Categorical(), **uses.get(name, {}))
        step = bbh.TrainingStep(posterior, torch.optim.SGD(posterior.parameters(), 0.1), num_data=8)
        step((inputs, targets))
        bbh.predict(posterior, inputs, 2)


@over_methods
def test_a_file_has_the_trained_part_and_goes_onto_the_same_network(method, tmp_path):
    network = adapted()
    posterior = posterior_of(method, network)
    bbh.save(posterior, tmp_path / "small")
    bbh.save(posterior, tmp_path / "whole", with_frozen=True)
    frozen_bytes = sum(value.nbytes for value in frozen_of(network).values())
    sizes = [(tmp_path / name).stat().st_size for name in ("small", "whole")]
    assert 0 <= sizes[1] - sizes[0] - frozen_bytes < 10_000
    same, other = copy.deepcopy(network), adapted()
    inputs = torch.randn(5, 4)
    again = bbh.load(tmp_path / "small", same)
    whole = bbh.load(tmp_path / "whole", other)
    expected = predicted(posterior, inputs)
    assert torch.equal(predicted(again, inputs), expected)
    assert torch.equal(predicted(whole, inputs), expected)
    assert again.frozen()["0.weight"].data_ptr() == same[0].weight.data_ptr()
    with pytest.raises(StorageError, match=r"8 of 8 frozen parameters .*: 0\.weight, 0\.bias"):
        bbh.load(tmp_path / "small", other)
    same[2].layer.weight.data[0, 0] += 1
    with pytest.raises(StorageError, match=r"1 of 8 frozen parameters .*: 2\.layer\.weight\. "):
        bbh.load(tmp_path / "small", same)


def predicted(posterior: bbh.Posterior[Any], inputs: Tensor) -> Tensor:
    torch.manual_seed(3)
    return bbh.predict(posterior, inputs, 4).mean


def test_states_are_small_and_know_their_network():
    """Checkpoints and the best state of early stopping are made of them."""
    network = adapted()
    posterior = posterior_of(METHODS["bayes_by_backprop"], network)
    state = posterior.state_dict()
    assert sum(value.numel() for value in state.values()) < 10_000
    posterior_of(METHODS["bayes_by_backprop"], network).load_state_dict(state)
    other = posterior_of(METHODS["bayes_by_backprop"], adapted())
    with pytest.raises(RuntimeError, match="8 of 8 frozen parameters have other values"):
        other.load_state_dict(state)


def test_a_file_is_not_put_onto_a_network_without_values(tmp_path):
    posterior = posterior_of(METHODS["bayes_by_backprop"], adapted())
    bbh.save(posterior, tmp_path / "file")
    with pytest.raises(StorageError, match=r"have no values: 0\.weight, .* on the meta device"):
        bbh.load(tmp_path / "file", adapted().to("meta"))


def test_a_converted_posterior_keeps_its_type(tmp_path):
    network = adapted()
    posterior = posterior_of(METHODS["bayes_by_backprop"], network).double()
    bbh.save(posterior, tmp_path / "file")
    again = bbh.load(tmp_path / "file", network)
    inputs = torch.randn(5, 4, dtype=torch.float64)
    assert predicted(again, inputs).dtype == torch.float64
    assert torch.equal(predicted(again, inputs), predicted(posterior, inputs))
    assert network[0].weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["deep_ensemble", "mixture"])
def test_members_of_adapters_start_as_the_network_does(name):
    """Their first factors differ, their second factors are zero, and nothing else is theirs."""
    network = adapted()
    options = {"method": bbh.methods.maximum_a_posteriori} if name == "mixture" else {}
    posterior = bbh.methods.registered()[name](
        network, bbh.likelihoods.Categorical(), num_members=3, **options
    )
    draws = posterior.eval().sample(3)
    first = draws["2.down.weight"]
    assert len({tuple(one.flatten().tolist()) for one in first}) == 3
    assert torch.equal(draws["2.up.weight"], torch.zeros(3, WIDTH, 2))
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(posterior(inputs, draws), network(inputs).expand(3, 5, 3))


def test_a_network_of_zeros_is_initialised_anew():
    network = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(network.weight)
    posterior = bbh.methods.deep_ensemble(network, bbh.likelihoods.Categorical(), num_members=2)
    first, second = posterior.sample(2)["weight"]
    assert not first.any()
    assert second.any()


def test_frozen_parts_of_a_module_that_is_initialised_anew_are_not_written_to():
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    before = layer.bias.clone()
    bbh.methods.deep_ensemble(layer, bbh.likelihoods.Categorical(), num_members=3)
    assert torch.equal(layer.bias, before)


def test_members_do_not_keep_copies_alive():
    network = adapted()
    posterior = bbh.methods.mixture(
        network,
        bbh.likelihoods.Categorical(),
        method=bbh.methods.maximum_a_posteriori,
        num_members=4,
    )
    held = weakref.ref(posterior)
    gc.collect()
    matrices = {
        one.untyped_storage().data_ptr()
        for one in gc.get_objects()
        if type(one) in (Tensor, nn.Parameter) and one.shape == (WIDTH, WIDTH) and not one.is_meta
    }
    assert held() is not None
    assert matrices >= {network[2].layer.weight.data_ptr(), network[4].layer.weight.data_ptr()}
    assert len(matrices - before_matrices(network)) == 0


def before_matrices(network: nn.Module) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in network.parameters()}
