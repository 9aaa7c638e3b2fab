"""Draws: what they were made from travels with them, however they are cut, moved or laid out."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bbh.per_example import InputDropout, PerExampleWeight
from bbh.samples import Samples, Shapes, TensorTable, flatten, size, unflatten

shapes_strategy = st.lists(
    st.lists(st.integers(1, 4), min_size=0, max_size=4), min_size=1, max_size=5
).map(lambda sizes: {f"layer{i}.weight": torch.Size(shape) for i, shape in enumerate(sizes)})


# --- Draws that know where they come from ----------------------------------------------------


def made() -> Samples:
    return Samples(
        {"w": torch.arange(6.0).view(3, 2)},
        latents={"z": torch.tensor([10.0, 11.0, 12.0])},
        common={"scale": torch.tensor([1.0, 2.0])},
    )


def test_a_part_keeps_what_it_was_made_from():
    part = made().take(slice(1, 3))
    assert part.num_samples == 2
    assert part["w"].tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert part.latent("z").tolist() == [11.0, 12.0]
    assert part.latent("scale").tolist() == [1.0, 2.0]
    assert part.take(slice(1)).latent("z").tolist() == [11.0]


def test_a_product_keeps_its_parts_through_every_change():
    joined = Samples.joined([made(), Samples({"b": torch.zeros(3, 4)})])
    with_mean = joined.with_buffers({"mean": torch.arange(3.0)})
    for changed in (
        with_mean.take(slice(2)),
        with_mean.to("cpu").take(slice(2)),
        with_mean.detach().take(slice(2)),
    ):
        assert list(changed) == ["w", "b", "mean"]
        assert changed["mean"].tolist() == [0.0, 1.0]
        first, second = changed.parts
        assert first.latent("z").tolist() == [10.0, 11.0]
        # The same tensors, not copies: they are cut once.
        assert first["w"] is changed["w"]
        assert second["b"] is changed["b"]


def test_on_another_device_with_everything():
    moved = Samples.joined([made()]).to("meta")
    assert moved["w"].is_meta
    assert moved.parts[0].latent("z").is_meta
    assert moved.parts[0].latent("scale").is_meta


def test_recipes_for_single_examples_move_along():
    recipe = InputDropout(torch.ones(2), 0.5)
    moved = Samples({"w": PerExampleWeight.wrap(torch.randn(3, 2), recipe)}).to("meta")
    assert isinstance(moved["w"], PerExampleWeight)
    assert moved["w"].perturbation.kernel.is_meta
    assert moved["w"].perturbation.rate == 0.5


def test_all_tensors_that_draws_hold():
    members = in_turn()
    part = made().with_buffers({"mean": torch.ones(3)})
    product = Samples.joined([members, part])
    held = [id(one) for one in product.held()]
    for one in (product["w"], part["mean"], part.latent("z"), part.latent("scale")):
        assert id(one) in held
    for member in members.members.values():
        assert id(member["w"]) in held
        assert id(member.latent("z")) in held


def test_values_alone_know_nothing():
    with pytest.raises(KeyError, match="do not know their 'z'"):
        made().values_only().latent("z")


@pytest.mark.parametrize("asked_first", [True, False])
def test_what_is_left_for_later_is_made_once_for_all_copies(asked_first):
    calls = []

    def make():
        calls.append(1)
        return {"masks": torch.rand(3)}

    draws = Samples({"w": torch.zeros(3, 2)}, later=make)
    if asked_first:
        draws.latent("masks")
    with_mean = draws.with_buffers({"mean": torch.zeros(3)})
    copies = [with_mean, draws.take(slice(3)), draws.to("cpu"), draws.detach()]
    for one in copies:
        assert torch.equal(one.latent("masks"), draws.latent("masks"))
    assert torch.equal(draws.take(slice(1)).latent("masks"), draws.latent("masks")[:1])
    assert len(calls) == 1
    assert not draws.values_only().keys() - {"w"}


def in_turn() -> Samples:
    """Draws of two members: the first has 0, 2 and 3, the second 1 and 4."""
    first = Samples(
        {"w": torch.tensor([[0.0], [2.0], [3.0]])}, latents={"z": torch.tensor([0.0, 2.0, 3.0])}
    )
    second = Samples({"w": torch.tensor([[1.0], [4.0]])}, latents={"z": torch.tensor([1.0, 4.0])})
    return Samples.in_turn({0: first, 5: second}, [0, 5, 0, 0, 5])


def test_members_take_turns():
    draws = in_turn()
    assert draws.num_samples == 5
    assert list(draws) == ["w"]
    assert (draws.shape("w"), len(draws), draws.device.type) == ((1,), 1, "cpu")
    assert repr(draws) == "Samples(w: [5, 1])"
    assert draws["w"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert [one["w"].item() for one in draws.apart()] == [0, 1, 2, 3, 4]
    assert "z" not in draws.values_only()
    with pytest.raises(KeyError):
        draws["z"]


def test_members_are_kept_through_every_change():
    with_mean = in_turn().with_buffers({"mean": torch.arange(5.0)})
    for changed in (
        with_mean.take(slice(1, 4)),
        with_mean.to("cpu").take(slice(1, None)).take(slice(3)),
        pickle.loads(pickle.dumps(with_mean)).detach().take(slice(1, 4)),
    ):
        assert list(changed) == ["w", "mean"]
        assert changed["w"].flatten().tolist() == changed["mean"].tolist() == [1, 2, 3]
        assert [one["mean"].item() for one in changed.apart()] == [1, 2, 3]
        assert changed.members[0].latent("z").tolist() == [2, 3]
        assert changed.members[5].latent("z").tolist() == [1]
    only = with_mean.take(slice(2, 4))
    assert list(only.members) == [0]
    assert with_mean.take(slice(9, 20)).num_samples == 0
    assert in_turn().to("meta")["w"].is_meta


def test_a_part_of_a_product_may_have_members():
    joined = Samples.joined([in_turn(), Samples({"b": torch.arange(5.0)})])
    part = joined.take(slice(1, 4))
    assert part["w"].flatten().tolist() == part["b"].tolist() == [1, 2, 3]
    assert part.parts[0].members[5].latent("z").tolist() == [1]


def test_what_draws_of_a_member_write_to_a_buffer_is_kept_for_the_member():
    means = [torch.zeros(1), torch.zeros(1)]
    members = {
        number: Samples({"w": torch.ones(2, 1)}).with_buffers({"mean": mean.expand(2, 1)})
        for number, mean in enumerate(means)
    }
    for index, draw in enumerate(Samples.in_turn(members, [0, 1, 0, 1]).apart()):
        draw["mean"].add_(1 + index)
    assert [mean.item() for mean in means] == [1 + 3, 2 + 4]


def test_gradients_reach_the_members_of_stacked_draws():
    weights = [torch.ones(2, 1, requires_grad=True), torch.ones(1, 1, requires_grad=True)]
    members = {number: Samples({"w": one}) for number, one in enumerate(weights)}
    draws = Samples.in_turn(members, [0, 1, 0])
    (draws["w"].flatten() * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert weights[0].grad.flatten().tolist() == [1, 100]
    assert weights[1].grad.flatten().tolist() == [10]


def test_plain_dictionaries_are_draws_from_elsewhere():
    plain = {"w": torch.zeros(3, 2)}
    assert dict(Samples.of(plain)) == plain
    draws = made()
    assert Samples.of(draws) is draws


# --- Flatten and unflatten ------------------------------------------------------------------


@given(shapes_strategy, st.integers(1, 4))
def test_unflatten_then_flatten_changes_nothing(shapes: Shapes, num_samples: int):
    matrix = torch.arange(float(num_samples * size(shapes))).view(num_samples, -1)
    samples = unflatten(matrix, shapes)
    assert {name: value.shape for name, value in samples.items()} == {
        name: (num_samples, *shape) for name, shape in shapes.items()
    }
    assert torch.equal(flatten(samples, shapes), matrix)


@given(shapes_strategy, st.integers(1, 4))
def test_flatten_then_unflatten_changes_nothing(shapes: Shapes, num_samples: int):
    samples = {name: torch.randn(num_samples, *shape) for name, shape in shapes.items()}
    back = unflatten(flatten(samples, shapes), shapes)
    assert back.keys() == samples.keys()
    assert all(torch.equal(back[name], samples[name]) for name in shapes)


@given(shapes_strategy)
def test_size_is_the_number_of_columns(shapes: Shapes):
    samples = {name: torch.zeros(2, *shape) for name, shape in shapes.items()}
    assert flatten(samples, shapes).shape == (2, size(shapes))
    assert size(shapes) == sum(value[0].numel() for value in samples.values())


@given(shapes_strategy, st.data())
def test_flatten_takes_the_named_tensors_in_the_shapes_order(shapes: Shapes, data):
    names = data.draw(st.permutations(list(shapes)))
    some = {name: shapes[name] for name in names[: data.draw(st.integers(1, len(names)))]}
    samples = {
        name: torch.full((1, *shape), float(i)) for i, (name, shape) in enumerate(shapes.items())
    }
    order = list(shapes)
    expected = [float(order.index(name)) for name in some for _ in range(math.prod(shapes[name]))]
    assert flatten(samples, some)[0].tolist() == expected


def test_row_major_order_within_a_tensor():
    samples = {"a": torch.arange(6.0).view(1, 2, 3), "s": torch.tensor([6.0])}
    shapes: Shapes = {"a": torch.Size([2, 3]), "s": torch.Size([])}
    assert flatten(samples, shapes).tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_gradients_pass_both_ways():
    shapes: Shapes = {"a": torch.Size([2]), "s": torch.Size([])}
    matrix = torch.ones(2, 3, requires_grad=True)
    flatten(unflatten(matrix, shapes), shapes).sum().backward()
    assert torch.equal(matrix.grad, torch.ones(2, 3))  # type: ignore[arg-type]


# --- Tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [True, False])
def test_table_keeps_names_with_dots(trainable: bool):
    tensors = {"a.weight": torch.randn(2, 3), "b": torch.tensor(1.0)}
    table = TensorTable(tensors, trainable=trainable)
    assert list(table()) == ["a.weight", "b"]
    assert all(torch.equal(table()[name], value) for name, value in tensors.items())
    assert list(table.state_dict()) == ["a/weight", "b"]
    assert len(list(table.parameters())) == (2 if trainable else 0)
    assert table.double()()["b"].dtype == torch.float64


# --- Taking draws apart ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 4])
def test_draws_on_their_own_are_those_taken_with_the_same_gradient(number):
    weights = torch.randn(number, 3, 2, requires_grad=True)
    perturbed = PerExampleWeight.wrap(torch.randn(number, 2), InputDropout(torch.ones(2), 0.5))
    samples = {"w": weights, "p": perturbed}
    separate = Samples(samples).apart()
    assert len(separate) == number
    taken = [{"w": weights[index], "p": perturbed.draw(index)} for index in range(number)]
    for one, other in zip(separate, taken, strict=True):
        assert torch.equal(one["w"], other["w"])
        assert isinstance(one["p"], PerExampleWeight)
        assert torch.equal(one["p"].as_subclass(Tensor), other["p"].as_subclass(Tensor))
    used = max(1, number - 1)  # where one is left out, its gradient is zero
    sums = [
        sum((1 + index) * draws[index]["w"].square().sum() for index in range(used))
        for draws in (separate, taken)
    ]
    first, second = (torch.autograd.grad(total, weights)[0] for total in sums)
    torch.testing.assert_close(first, second)


def test_buffers_of_draws_on_their_own_may_be_written_to():
    means = torch.zeros(3, 2)
    draws = Samples({"mean": means, "w": torch.ones(3, 1).requires_grad_()})
    for index, draw in enumerate(draws.apart()):
        draw["mean"].add_(index)
    assert torch.equal(means, torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))


@pytest.mark.parametrize("cut", [slice(1), slice(1, 4, 2), slice(9, 20)])
def test_one_setting_for_all_draws_is_repeated_less_often(cut):
    point, square = (torch.randn(1, *shape, requires_grad=True) for shape in ((4,), (3, 3)))
    several = torch.randn(5, 2, requires_grad=True)
    samples = {
        "point": point.expand(5, 4),
        "turned": square.mT.expand(5, 3, 3),  # same shape as what it was made of, not the same
        "part": point[:, 1:3].expand(5, 2),
        "several": several,
    }
    taken = Samples(samples).take(cut)
    assert taken["point"]._base is point
    for name, value in samples.items():
        assert torch.equal(taken[name], value[cut])
    leaves = (point, square, several)
    ours, theirs = (
        torch.autograd.grad(sum((part + 1).pow(3).sum() for part in parts), leaves)
        for parts in (taken.values(), [value[cut] for value in samples.values()])
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
