"""What optimizers share that take gradients in factors, and the factors themselves."""

import copy
from functools import partial

import pytest
import torch

import bbh
from bbh.generators.factored.adam import FactoredAdam, make_adam
from bbh.generators.factored.gradients import (
    clip_,
    collect_factors,
    dense_blocks,
    factors_of,
    outer_linear,
    total_norm,
)
from bbh.generators.factored.rmsprop import TensorFlowRMSprop, make_tensorflow_rmsprop

over_makers = pytest.mark.parametrize("make", [make_adam, make_tensorflow_rmsprop])


def posterior_and_data():
    torch.manual_seed(0)
    # Wide enough that output layers count as large.
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    posterior = bbh.methods.bayes_by_hypernet(
        network,
        bbh.likelihoods.Categorical(),
        generator=bbh.generators.LayerWise((8, 512)),
        # Gradients of close neighbours magnify rounding: they are limited here.
        divergence=bbh.divergences.NearestNeighbourEntropy(floor=1.0),
    )
    return posterior, [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(4)]


def backward(posterior, data):
    bbh.free_energy(posterior, data[0], num_data=24).total.backward()


def test_factors_are_the_gradient():
    matrix, features = torch.randn(7, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    outputs = torch.randn(3, 7)
    (outer_linear(features, matrix) * outputs).sum().backward()
    dense, inner = matrix.grad, features.grad
    matrix.grad = features.grad = None
    collect_factors(matrix)
    (outer_linear(features, matrix) * outputs).sum().backward()
    assert matrix.grad is None
    torch.testing.assert_close(features.grad, inner)
    left, right = factors_of(matrix)
    torch.testing.assert_close(left.T @ right, dense)
    # Two passes add up, as gradients do.
    (outer_linear(features, matrix) * outputs).sum().backward()
    left, right = factors_of(matrix)
    torch.testing.assert_close(left.T @ right, 2 * dense)


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_blocks_make_up_the_whole_gradient(size, monkeypatch):
    monkeypatch.setattr("bbh.generators.factored.gradients._BLOCK_BYTES", size)
    left, right = torch.randn(3, 17), torch.randn(3, 5)
    parts, blocks = zip(*dense_blocks(left, right), strict=True)
    rows = torch.arange(17)
    assert torch.cat([rows[part] for part in parts]).tolist() == rows.tolist()
    assert len(parts) == {1: 17, 100: 4, 10_000: 1}[size]  # a row has twenty bytes
    torch.testing.assert_close(torch.cat(blocks), left.T @ right)


def test_norm_and_clipping_see_both_kinds():
    matrix, bias = torch.nn.Parameter(torch.randn(7, 4)), torch.nn.Parameter(torch.randn(7))
    features = torch.randn(3, 4)

    def backward():
        (outer_linear(features, matrix) + bias).square().sum().backward()

    backward()
    parameters = [matrix, bias]
    expected = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    clipped = matrix.grad * 0.5 / expected
    matrix.grad = bias.grad = None
    collect_factors(matrix)
    backward()
    norm = total_norm(parameters)
    torch.testing.assert_close(norm, expected)
    clip_(parameters, 0.5, norm)
    left, right = factors_of(matrix)
    torch.testing.assert_close(left.T @ right, clipped)
    torch.testing.assert_close(total_norm(parameters), torch.tensor(0.5))


@over_makers
@pytest.mark.parametrize("broken", [False, True])
def test_a_skipped_step_leaves_no_trace(make, broken):
    posterior, data = posterior_and_data()
    optimizer = make(posterior.weights, posterior.parameters())
    backward(posterior, data)
    optimizer.step()
    if broken:  # as the gradients are for which steps are skipped
        for parameter in posterior.parameters():
            if parameter.grad is None:
                factors_of(parameter).left.fill_(torch.nan)
            else:
                parameter.grad.fill_(torch.nan)
    before = copy.deepcopy((posterior.state_dict(), optimizer.state_dict()["state"]))
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    after = (posterior.state_dict(), optimizer.state_dict()["state"])
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@over_makers
def test_large_output_layers_are_factored_and_given_back(make):
    posterior, data = posterior_and_data()
    optimizer = make(posterior.weights, posterior.parameters())
    backward(posterior, data)
    without = [p for p in posterior.parameters() if p.grad is None]
    assert [tuple(p.shape) for p in without] == [(256, 512), (192, 512)]
    optimizer.zero_grad()
    assert all(factors_of(p) is None for p in without)
    optimizer.release()
    backward(posterior, data)
    assert all(p.grad is not None for p in posterior.parameters())


@pytest.mark.parametrize("kind", [FactoredAdam, TensorFlowRMSprop])
def test_an_optimizer_of_fewer_matrices_takes_the_others_back(kind):
    posterior, data = posterior_and_data()
    make_adam(posterior.weights, posterior.parameters())
    first, second = (p for p in posterior.parameters() if p.numel() >= 2**16)
    kind(posterior.parameters(), [first])
    backward(posterior, data)
    assert first.grad is None
    assert second.grad is not None


def test_a_refused_optimizer_collects_nothing():
    posterior, data = posterior_and_data()
    with pytest.raises(ValueError, match="neither amsgrad nor maximize"):
        make_adam(posterior.weights, posterior.parameters(), amsgrad=True)
    backward(posterior, data)
    assert all(p.grad is not None for p in posterior.parameters())


@over_makers
def test_training_that_broke_off_gives_them_back(make):
    posterior, data = posterior_and_data()
    broken = [(torch.full((6, 4), torch.nan), torch.arange(6) % 3)]
    with pytest.raises(bbh.DivergedError):
        bbh.fit(
            posterior,
            broken,
            epochs=1,
            num_data=24,
            optimizer=lambda parameters: make(posterior.weights, parameters),
            progress=False,
        )
    backward(posterior, data)
    assert all(p.grad is not None for p in posterior.parameters())


@pytest.mark.parametrize(
    "make", [make_adam, partial(make_adam, moments=torch.bfloat16), make_tensorflow_rmsprop]
)
def test_training_goes_on_bit_for_bit(make, tmp_path):
    """The matrices' state is stored too: with another state of theirs, draws would differ."""

    def trained(*epochs):
        posterior, data = posterior_and_data()
        for number in epochs:
            bbh.fit(
                posterior,
                data,
                epochs=number,
                num_data=24,
                beta=1.0,
                optimizer=lambda parameters: make(posterior.weights, parameters, lr=1e-2),
                checkpoint=bbh.Checkpoint(tmp_path / str(epochs), resume=number != epochs[0]),
                progress=False,
            )
        return posterior.state_dict()

    torch.testing.assert_close(trained(2, 4), trained(4), rtol=0, atol=0)


def in_a_group(optimizer, parameter, name):
    optimizer.param_groups[0][name] = True


def in_a_new_group(optimizer, parameter, name):
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": [parameter], name: True})


def in_a_state(optimizer, parameter, name):
    state = torch.optim.Adam([parameter], lr=0.1, **{name: True}).state_dict()
    optimizer.load_state_dict(state)


@pytest.mark.parametrize("way", [in_a_group, in_a_new_group, in_a_state])
@pytest.mark.parametrize("name", ["maximize", "amsgrad", "decoupled_weight_decay", None])
def test_plain_parameters_take_torchs_own_steps(name, way):
    torch.manual_seed(0)
    gradients = torch.randn(10, 5)
    found = []
    for kind in (partial(FactoredAdam, factored=[]), partial(torch.optim.Adam, fused=True)):
        parameter = torch.nn.Parameter(torch.ones(5))
        optimizer = kind([parameter], lr=0.1, weight_decay=0.01)
        if name is not None:
            way(optimizer, parameter, name)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)
