"""The same on a GPU: skipped where there is none."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.divergences import lines_cost
from bbh.execution import Fork, Streams
from bbh.generators.factored.rmsprop import TensorFlowRMSprop
from bbh.training import recorded as graphs
from bbh_studies.problems.cifar5 import channels_innermost
from bbh_studies.problems.cifar5.resnet import ResNet
from divergences.test_neighbours import CASES
from divergences.test_neighbours import compare as compare_neighbours
from generators.test_directions import compare_lines
from generators.test_factored_optimizers import posterior_and_data
from generators.test_outer_adam import SETTINGS, SHAPES, check_rounding, compare, rounding
from generators.test_outer_rmsprop import RANKS
from generators.test_outer_rmsprop import SETTINGS as RMSPROP
from generators.test_outer_rmsprop import compare as compare_rmsprop
from generators.test_skinny import CASES as SKINNY
from generators.test_skinny import compare as compare_products
from network.test_attention import compare_gradients
from scenarios import (
    METHODS,
    BatchNormNet,
    LeNet,
    LSTMNet,
    SmallLeNet,
    TransformerNet,
    mlp,
    over_methods,
)
from studies.test_filter_response_norm import (
    LARGE,
    MANY,
    SMALL,
    compare_network,
    random_network,
    with_options,
)
from studies.test_filter_response_norm import compare as compare_responses
from studies.test_group_norm import CASES as GROUP_NORMS
from studies.test_group_norm import compare as compare_norms

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NETWORKS = {
    "mlp": (mlp, lambda: torch.randn(12, 4)),
    "lenet": (SmallLeNet, lambda: torch.randn(12, 1, 6, 6)),
    "batch norm": (BatchNormNet, lambda: torch.randn(12, 1, 6, 6)),
    "lstm": (LSTMNet, lambda: torch.randint(0, 3, (12, 5))),
    "transformer": (TransformerNet, lambda: torch.randint(0, 3, (12, 5))),
}

DIRECTIONS = partial(
    bbh.methods.bayes_by_hypernet,
    generator=bbh.generators.Directions(),
    # Gradients of close neighbours magnify rounding, most of all among the 64 draws of its few
    # random numbers: without a limit, weights that differ by 1e-7 are 5 % apart after thirty steps.
    divergence=bbh.divergences.NearestNeighbourEntropy(floor=0.03),
)


@over_methods
@pytest.mark.parametrize("training", [True, False])
def test_draws_cost_the_same_on_another_device(method, training):
    posterior = method(SmallLeNet(), bbh.likelihoods.Categorical()).train(training)
    draws = posterior.sample(5)
    here = posterior.weights.cost(draws, posterior.prior).complexity
    there = posterior.cuda().weights.cost(draws.to("cuda"), posterior.prior).complexity
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-3)


@over_methods
@pytest.mark.parametrize(("make", "inputs"), NETWORKS.values(), ids=NETWORKS.keys())
def test_trains_on_the_gpu_and_predicts_as_on_the_cpu(method, make, inputs, tmp_path):
    posterior = method(make(), bbh.likelihoods.Categorical())
    examples = inputs()
    loader = DataLoader(TensorDataset(examples, torch.arange(12) % 3), batch_size=4)
    history = bbh.fit(posterior, loader, epochs=2, progress=False)
    assert posterior.device.type == "cuda"
    assert len(history) == 2
    assert bbh.predict(posterior, examples, num_samples=7).mean.device.type == "cpu"
    samples = {name: value.detach() for name, value in posterior.sample(4).items()}
    with torch.no_grad():
        on_gpu = posterior(examples.cuda(), samples).cpu()
        posterior.cpu()
        on_cpu = posterior(examples, {name: value.cpu() for name, value in samples.items()})
    # Single precision, and TF32 in convolutions: about 1e-3 relative.
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_layer_wise_lenet_trains(precision):
    from lightning_fabric import Fabric

    posterior = bbh.methods.bayes_by_hypernet(
        LeNet(), bbh.likelihoods.Categorical(), generator=bbh.generators.LayerWise()
    )
    images, labels = torch.randn(200, 1, 28, 28), torch.arange(200) % 10
    loader = DataLoader(TensorDataset(images, labels), batch_size=100)
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    history = bbh.fit(posterior, loader, epochs=3, fabric=fabric, progress=False)
    # Not the total, in which the weight of the complexity rises from epoch to epoch.
    assert history[-1].complexity < history[0].complexity


def test_draws_are_the_same_for_all_batches_when_made_again():
    posterior = bbh.methods.bayes_by_hypernet(mlp(), bbh.likelihoods.Categorical()).cuda()
    one = torch.randn(1, 4)
    repeated = one.expand(300, 4)
    predictive = bbh.predict(posterior, repeated, 50, batch_size=7, memory_limit=20_000)
    torch.testing.assert_close(predictive.mean, predictive.mean[:1].expand(300, 3))


@pytest.mark.parametrize(
    "method", [*METHODS.values(), DIRECTIONS], ids=[*METHODS.keys(), "directions"]
)
@pytest.mark.parametrize("make", [mlp, SmallLeNet, BatchNormNet])
def test_graphs_train_as_single_kernels_do(method, make):
    inputs = torch.randn(40, 4) if make is mlp else torch.randn(40, 1, 6, 6)
    loader = DataLoader(TensorDataset(inputs, torch.arange(40) % 3), batch_size=4)
    posterior = method(make(), bbh.likelihoods.Categorical())
    other = copy.deepcopy(posterior)
    histories = []
    for one, graph in ((posterior, False), (other, True)):
        torch.manual_seed(1)
        histories.append(
            bbh.fit(one, loader, epochs=3, beta=bbh.Linear(0, 2), cuda_graph=graph, progress=False)
        )
    totals = torch.tensor([[epoch.total for epoch in history] for history in histories])
    # The same random numbers; sums in another order, TF32 in convolutions, thirty steps.
    torch.testing.assert_close(totals[0], totals[1], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("fails", [False, True])
def test_graphs_train_with_tensorflows_rmsprop_as_single_kernels_do(fails, monkeypatch):
    """Output layers are factored; if a step fails, both end with the state before it."""
    replays = []

    def counting(work, record=graphs.record):
        replay = record(work)
        return lambda: (replays.append(1), replay())

    monkeypatch.setattr(graphs, "record", counting)
    results = []
    for graph in (False, True):
        posterior, batches = posterior_and_data()
        batches *= 20
        if fails:
            batches[75] = torch.full((6, 4), torch.nan), batches[75][1]
        optimizers = []

        def make(parameters, weights=posterior.weights, optimizers=optimizers):
            matrices = weights.factored_parameters()
            optimizers.append(TensorFlowRMSprop(parameters, matrices, lr=1e-3))
            return optimizers[0]

        settings = {"optimizer": make, "cuda_graph": graph, "gradient_clip": 0.5}
        failing = pytest.raises(bbh.DivergedError, match="step 76: the nll is nan")
        torch.manual_seed(1)
        with failing if fails else nullcontext():
            bbh.fit(posterior, batches, epochs=1, num_data=24, progress=False, **settings)
        (optimizer,) = optimizers
        assert len(optimizer.factored) == 4
        results.append((posterior.state_dict(), optimizer.state_dict()["state"]))
    assert len(replays) == 77
    # The same random numbers; sums in another order, eighty steps.
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)


def normed():
    return [
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.GroupNorm(4, 8),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 3),
    ]


@pytest.mark.parametrize("method", [bbh.methods.deep_ensemble, bbh.methods.bayes_by_hypernet])
@pytest.mark.parametrize("per_draw", [False, True], ids=["same inputs", "inputs per draw"])
def test_draws_side_by_side_train_as_one_after_the_other(method, per_draw, monkeypatch):
    forked = []
    run = Streams.run

    def spy(streams, network, *arguments):
        forked.append(network)
        return run(streams, network, *arguments)

    monkeypatch.setattr(Streams, "run", spy)
    inputs = torch.randn(40, 1, 6, 6)
    loader = DataLoader(TensorDataset(inputs, torch.arange(40) % 3), batch_size=4)
    posterior = method(torch.nn.Sequential(*normed()), bbh.likelihoods.Categorical())
    if per_draw:
        posterior.adversarial = bbh.AdversarialTraining(0.01)
    other = copy.deepcopy(posterior)
    other.execution = bbh.Loop()
    totals = []
    for one in (posterior, other):
        torch.manual_seed(1)
        totals.append([e.total for e in bbh.fit(one, loader, epochs=3, progress=False)])
    assert set(forked) == {posterior.runnable}
    torch.testing.assert_close(*torch.tensor(totals), rtol=2e-2, atol=2e-2)


def test_forked_work_runs_beside_other_work_and_keeps_its_memory():
    """While the fork still reads them, inputs are freed, and what comes next wants their memory."""
    square = torch.empty(1024, 1024, device="cuda")
    results = []

    def work():
        start = square / 32
        fork = Fork(lambda: [(start @ start).relu() for _ in range(50)][-1].sum(0), start)
        results.clear()
        results.append(start.sum())
        start = None
        for _ in range(50):
            torch.zeros_like(square).add_(1)
        results.append(fork.result())
        torch.zeros_like(square).fill_(torch.nan)

    work()
    replay = graphs.record(work)
    for seed in range(3):
        torch.manual_seed(seed)
        square.copy_(torch.randn(1024, 1024))
        replay()
        total, columns = results
        expected = square / 32
        torch.testing.assert_close(total, expected.sum(), rtol=1e-3, atol=1e-3)
        columns_of = (expected @ expected).relu().sum(0)
        torch.testing.assert_close(columns, columns_of, rtol=1e-3, atol=1e-3)


class Asking(torch.nn.Sequential):
    """A network that asks the device for a value, which cannot be recorded."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        return outputs if outputs.abs().max().item() < 1e9 else -outputs


@pytest.mark.parametrize("forks", [False, True])
def test_what_cannot_be_recorded_still_trains_and_draws(forks):
    # Five members with a norm are recorded side by side: that breaks off in the middle of a fork.
    network = Asking(*normed()) if forks else Asking(torch.nn.Linear(4, 3))
    method = bbh.methods.deep_ensemble if forks else bbh.methods.bayes_by_backprop
    posterior = method(network, bbh.likelihoods.Categorical())
    inputs = torch.randn(40, 1, 6, 6) if forks else torch.randn(40, 4)
    loader = DataLoader(TensorDataset(inputs, torch.arange(40) % 3), batch_size=4)
    history = bbh.fit(posterior, loader, epochs=3, progress=False)
    assert len(history) == 3
    assert torch.randn(3, device="cuda").isfinite().all()
    assert len(bbh.fit(posterior, loader, epochs=2, progress=False)) == 2


def test_a_failed_recorded_step_stops_training_before_it():
    inputs = torch.randn(400, 4)
    inputs[300:] = torch.nan
    posterior = bbh.methods.bayes_by_backprop(mlp(), bbh.likelihoods.Categorical())
    loader = DataLoader(TensorDataset(inputs, torch.arange(400) % 3), batch_size=4)
    with pytest.raises(bbh.DivergedError, match="step 76: the nll is nan"):
        bbh.fit(posterior, loader, epochs=1, progress=False)
    assert all(value.isfinite().all() for value in posterior.state_dict().values())


@pytest.mark.parametrize("shape", SHAPES)
def test_rank_adam_kernel(shape):
    def on_gpu(*tensors):
        *moved, settings = [one.cuda() if isinstance(one, torch.Tensor) else one for one in tensors]
        launch(*moved, settings)
        for old, new in zip(tensors[:3], moved[:3], strict=True):
            old.copy_(new)

    from bbh.generators.factored.outer_adam_triton import launch

    for rank in (1, 5, 16):
        for settings in SETTINGS:
            assert compare(on_gpu, shape, rank, settings) < 3e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_rank_rmsprop_kernel(shape):
    from bbh.generators.factored.outer_rmsprop_triton import launch

    def on_gpu(*tensors):
        *moved, settings = tensors
        moved = [one.cuda() for one in moved]
        settings = settings._replace(rate=settings.rate.cuda(), skip=settings.skip.cuda())
        launch(*moved, settings)
        for old, new in zip(tensors[:2], moved[:2], strict=True):
            old.copy_(new)

    for rank in RANKS:
        for settings in RMSPROP:
            assert compare_rmsprop(on_gpu, shape, rank, *settings) < 3e-6


def test_rank_adam_kernel_with_half_the_moments():
    from bbh.generators.factored.outer_adam_triton import launch

    def on_gpu(*tensors):
        moved = [one.cuda() if isinstance(one, torch.Tensor) else one for one in tensors]
        launch(*moved)
        for old, new in zip(tensors[:3], moved[:3], strict=True):
            old.copy_(new)

    check_rounding(*rounding(on_gpu))


def test_kernel_of_lines():
    from bbh.divergences.lines_triton import sums_and_slopes

    compare_lines(sums_and_slopes, "cuda")
    compare_lines(lines_cost._sums_and_slopes, "cuda")


def test_neighbour_kernel():
    def on_gpu(values, reference, floor, neighbours):
        values, reference = (one if one is None else one.cuda() for one in (values, reference))
        return tuple(one.cpu() for one in log_distances(values, reference, floor, neighbours))

    from bbh.divergences.neighbours_triton import log_distances

    assert max(compare_neighbours(on_gpu, *case) for case in CASES) < 1e-4


def test_skinny_kernels():
    from bbh.generators.factored.skinny_triton import columns_product, rows_product

    def on_gpu(product):
        return lambda vectors, matrix: product(vectors.cuda(), matrix.cuda()).cpu()

    for case in (*SKINNY, (5, 50_000, 512)):
        error = compare_products(on_gpu(rows_product), on_gpu(columns_product), *case)
        assert error < 1e-5


@pytest.fixture
def full_precision():
    """Convolutions in float32: their usual TF32 is too coarse to compare with a CPU."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_gpu(work):
    """A function that moves its tensors to the GPU and its results back."""

    def moved(*arguments):
        results = work(*(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments))
        if isinstance(results, torch.Tensor):
            return results.cpu()
        return tuple(None if one is None else one.cpu() for one in results)

    return moved


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_group_norm_kernels(dtype, error):
    from bbh_studies.problems.cifar5.group_norm_triton import backward, forward

    for case in (*GROUP_NORMS, (100, 16, 8, 32, 32, True), (7, 64, 8, 8, 8, False)):
        assert compare_norms(on_gpu(forward), on_gpu(backward), *case, dtype=dtype) < error


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filter_response_norm_kernels(dtype):
    from bbh_studies.problems.cifar5.filter_response_norm_triton import backward, forward

    for case in (*with_options(SMALL + LARGE), (25, 16, 32, 32, True, True), MANY):
        images, parameters = compare_responses(on_gpu(forward), on_gpu(backward), *case, dtype)
        assert images < (1e-4 if dtype is torch.float32 else 2**-8)
        assert parameters < 1e-4


@pytest.mark.usefixtures("full_precision")
def test_residual_networks_are_the_same_with_fused_norms(monkeypatch):
    network = ResNet(5, blocks=1, width=16).cuda()
    images = torch.rand(6, 3, 32, 32, device="cuda")
    launches = []
    for fused in (True, False):
        monkeypatch.setattr(channels_innermost, "triton_available", lambda fused=fused: fused)
        outputs = network(images)
        slopes = torch.autograd.grad(outputs.square().sum(), tuple(network.parameters()))
        launches.append((outputs, *slopes))
        fused_nodes = "GroupNormReLU" in str(named_nodes(outputs))
        assert fused_nodes == fused
    for mine, plain in zip(*launches, strict=True):
        scale = plain.abs().max().clamp(min=1e-3)
        # Sums over thousands of pixels in another order, through seven layers.
        torch.testing.assert_close(mine / scale, plain / scale, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("full_precision")
def test_filter_response_networks_are_the_same_with_fused_norms(monkeypatch):
    def switch(fused):
        monkeypatch.setattr(channels_innermost, "triton_available", lambda: fused)

    network = random_network(width=16).cuda()
    images = torch.rand(6, 3, 32, 32, device="cuda")
    for fused in (True, False):
        switch(fused)
        for half in (True, False):
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                names = str(named_nodes(network(images)))
            # Every norm of the network, in both precisions.
            assert ("FilterResponse" in names, "Maximum" in names) == (fused, not fused)
    compare_network(network, images, switch)


def named_nodes(outputs: torch.Tensor) -> set[str]:
    """Names of all operations in a graph."""
    nodes, seen = [outputs.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [after for after, _ in node.next_functions]
    return {node.name() for node in seen}


def test_small_output_layers_together_are_those_one_by_one():
    values = {f"{name}.weight": torch.randn(512, 8).cuda() for name in "abc"}
    generator = bbh.generators.LayerWise((16, 32)).build(values, bbh.GaussianNoise(3))
    noise = torch.randn(5, 3, 3, device="cuda")
    together = generator(noise)
    for one in generator.hypernetworks:
        (name,) = one.head.names
        alone = one(noise[:, one.head.group])
        torch.testing.assert_close(together[name].flatten(1), alone, rtol=1e-4, atol=1e-4)


@over_methods
@pytest.mark.usefixtures("full_precision")
def test_attacks_are_those_of_the_cpu_and_stay_within_memory(method):
    posterior = method(LeNet(), bbh.likelihoods.Categorical()).eval()
    inputs, targets = torch.rand(1000, 1, 28, 28), torch.randint(10, (1000,))
    with torch.no_grad():
        samples = posterior.sample(2)
    # In L2: signs of gradients near 0 may differ between devices.
    attack = bbh.attacks.FGSM(norm=bbh.attacks.L2(), memory_limit=2**28)
    on_cpu = attack(posterior, inputs[:20], targets[:20], 1.0, samples=samples)
    posterior.cuda()
    samples = {name: value.cuda() for name, value in samples.items()}
    on_gpu = attack(posterior, inputs[:20], targets[:20], 1.0, samples=samples)
    assert on_gpu.inputs.device.type == "cpu"
    torch.testing.assert_close(on_gpu.inputs, on_cpu.inputs, atol=1e-3, rtol=1e-3)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    attack(posterior, inputs, targets, 1.0)
    # Twice the limit leaves room for cuDNN's workspaces; all at once would take over 10 GiB.
    assert torch.cuda.max_memory_allocated() - before < 2**29


@over_methods
@pytest.mark.usefixtures("full_precision")
def test_looking_on_the_gpu_sees_what_the_cpu_sees(method):
    posterior = method(SmallLeNet(), bbh.likelihoods.Categorical()).eval()
    if not posterior.weights.random_shapes():
        pytest.skip("a point has nothing to look at")
    images, samples = torch.randn(12, 1, 6, 6), posterior.sample(40)
    on_cpu = bbh.inspect.look(posterior, images, samples=samples)
    on_gpu = bbh.inspect.look(posterior.cuda(), images, samples=samples.detach().to("cuda"))
    assert on_gpu.dimension.estimate == pytest.approx(on_cpu.dimension.estimate, rel=1e-6)
    torch.testing.assert_close(on_gpu.correlation.matrix, on_cpu.correlation.matrix, equal_nan=True)
    torch.testing.assert_close(on_gpu.kurtosis.excess, on_cpu.kurtosis.excess)
    assert on_gpu.diversity.kl == pytest.approx(on_cpu.diversity.kl, rel=1e-3)
    assert bbh.inspect.look(posterior, images, num_samples=40).marginals.draws.device.type == "cpu"


def test_attention_has_the_same_gradients_with_all_draws_at_once():
    """The memory-efficient kernel, which single precision takes, has none under vmap."""
    compare_gradients("cuda")
