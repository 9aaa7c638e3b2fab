"""predict and evaluate: known answers, and the same draws for every example."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bbh
from bbh.generators import Sliced
from scenarios import BatchNormNet, SmallLeNet, TwoInputs, dropout_mlp, mlp

Categorical = bbh.likelihoods.Categorical
SMALL = Sliced(hidden=(8, 8))
METHODS = {
    "map": bbh.methods.maximum_a_posteriori,
    "ensemble": lambda *args: bbh.methods.deep_ensemble(*args, num_members=3),
    "backprop": bbh.methods.bayes_by_backprop,
    "dropout": bbh.methods.mc_dropout,
    "flows": bbh.methods.multiplicative_normalizing_flows,
    "hypernet": lambda *args: bbh.methods.bayes_by_hypernet(*args, generator=SMALL),
}
over_methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def ensemble_of_linear(likelihood, num_members=4):
    """A linear ensemble with known members, for known answers."""
    posterior = bbh.methods.deep_ensemble(nn.Linear(2, 3), likelihood, num_members=num_members)
    members = []
    for index in range(num_members):
        member = nn.Linear(2, 3)
        sample = posterior.sample(num_members)
        with torch.no_grad():
            member.weight.copy_(sample["weight"][index])
            member.bias.copy_(sample["bias"][index])
        members.append(member)
    return posterior, members


def seeded(posterior, inputs, *args, **options):
    torch.manual_seed(7)
    return bbh.predict(posterior, inputs, *args, **options)


class TestPrecision:
    @over_methods
    @pytest.mark.parametrize("make", [mlp, SmallLeNet])
    @pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
    def test_half_precision_rounds_the_networks_products(self, method, make, precision):
        posterior = method(make(), Categorical())
        inputs = torch.randn(9, 4) if make is mlp else torch.randn(9, 1, 6, 6)
        exact = seeded(posterior, inputs, 11).mean
        rounded = seeded(posterior, inputs, 11, precision=precision).mean
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded.sum(1), torch.ones(9))
        # Logits of order one, a few roundings to 8 or 11 bits.
        error = (rounded - exact).abs().max()
        assert 0 < error < 16 * torch.finfo(precision).eps

    def test_others_are_refused(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        with pytest.raises(ValueError, match=r"precision=torch\.int8: choose one of"):
            bbh.predict(posterior, torch.randn(3, 4), precision=torch.int8)


class TestInputs:
    @over_methods
    def test_tensor_loader_and_single_examples_agree(self, method):
        posterior, inputs = method(mlp(), Categorical()), torch.randn(23, 4)
        whole = seeded(posterior, inputs, 11)
        loader = DataLoader(TensorDataset(inputs, torch.zeros(23)), batch_size=5)
        for other in (
            seeded(posterior, inputs, 11, batch_size=1),
            seeded(posterior, inputs, 11, batch_size=4),
            seeded(posterior, loader, 11),
            seeded(posterior, iter([inputs[:3], inputs[3:]]), 11),
            seeded(posterior, [{"input": inputs, "labels": torch.zeros(23)}], 11),
            seeded(posterior, [(inputs, torch.zeros(23), torch.ones(23))], 11),
        ):
            torch.testing.assert_close(other.mean, whole.mean)
            torch.testing.assert_close(other.expected_entropy, whole.expected_entropy)

    def test_several_inputs_as_tuple_dictionary_and_loader(self):
        posterior = bbh.methods.bayes_by_backprop(TwoInputs(), Categorical())
        left, right = torch.randn(9, 2), torch.randn(9, 3)
        expected = seeded(posterior, (left, right), 5).mean
        named = {"left": left, "right": right}
        targets = torch.zeros(9, dtype=torch.long)
        for inputs in (named, [named | {"targets": targets}], [((left, right), targets)]):
            torch.testing.assert_close(seeded(posterior, inputs, 5).mean, expected)
        torch.testing.assert_close(seeded(posterior, named, 5, batch_size=2).mean, expected)

    def test_packed_sequences_are_never_cut(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.gru = nn.GRU(3, 3)

            def forward(self, packed):
                return self.gru(packed)[1][0]

        network = Recurrent()
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        packed = nn.utils.rnn.pack_sequence([torch.randn(9, 3), torch.randn(7, 3)])
        with torch.no_grad():
            expected = network(packed).softmax(-1)
        # Sixteen steps in all: more than a batch, which a cut by steps would repeat.
        torch.testing.assert_close(bbh.predict(posterior, packed, batch_size=5).mean, expected)
        targets = torch.tensor([0, 2])
        torch.testing.assert_close(bbh.predict(posterior, [(packed, targets)]).mean, expected)
        measured = bbh.evaluate(posterior, [(packed, targets)])
        assert measured["nll"] == pytest.approx(-expected[[0, 1], targets].log().mean().item())

    def test_nothing_to_predict(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        for nothing in (torch.empty(0, 4), [], iter([torch.empty(0, 4)])):
            with pytest.raises(ValueError, match="the inputs are empty"):
                bbh.predict(posterior, nothing)
        with pytest.raises(ValueError, match="the inputs are empty"):
            bbh.evaluate(posterior, [])

    def test_a_list_of_tensors_is_ambiguous(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        with pytest.raises(TypeError, match=r"tuple\(inputs\).*iter\(inputs\)"):
            bbh.predict(posterior, [torch.randn(3, 4), torch.randn(3, 4)])

    def test_a_dictionary_may_be_a_whole_batch_with_parts_that_are_no_tensors(self):
        posterior = bbh.methods.maximum_a_posteriori(
            mlp(), Categorical(), forward=lambda network, inputs: network(inputs["features"])
        )
        features, labels = torch.randn(100, 4), torch.zeros(100, dtype=torch.long)
        batch = {"mask": None, "features": features, "labels": labels}
        expected = bbh.predict(posterior, {"features": features}).mean
        for given in (batch, [batch]):
            predictive = bbh.predict(posterior, given, batch_size=30)
            torch.testing.assert_close(predictive.mean, expected)

    def test_an_empty_batch_among_others_is_skipped(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        inputs = torch.randn(3, 4)
        predictive = bbh.predict(posterior, iter([torch.empty(0, 4), inputs, torch.empty(0, 4)]))
        torch.testing.assert_close(predictive.mean, bbh.predict(posterior, inputs).mean)

    @over_methods
    def test_numbers_that_make_no_sense(self, method):
        posterior = method(mlp(), Categorical())
        with pytest.raises(ValueError, match="num_samples=0"):
            bbh.predict(posterior, torch.zeros(2, 4), 0)
        with pytest.raises(ValueError, match="batch_size=0"):
            bbh.predict(posterior, torch.zeros(2, 4), batch_size=0)


class TestDraws:
    @over_methods
    def test_every_example_sees_the_same_draws(self, method):
        """Equal inputs, predicted one by one with draws that do not fit in memory."""
        posterior = method(mlp(), Categorical())
        inputs = torch.randn(1, 4).expand(6, 4)
        mean = bbh.predict(posterior, inputs, 9, memory_limit=1).mean
        torch.testing.assert_close(mean, mean[:1].expand_as(mean), rtol=1e-6, atol=1e-7)

    def test_draws_are_made_again_instead_of_kept(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        made = []
        sample = posterior.weights.sample
        posterior.weights.sample = lambda number: made.append(number) or sample(number)
        inputs = torch.randn(5, 4)
        bbh.predict(posterior, inputs, 6)
        assert sum(made) == 6 + 1  # one to measure with
        made.clear()
        bbh.predict(posterior, inputs, 6, memory_limit=1)
        assert sum(made) > 5 * 6

    @pytest.mark.parametrize("limit", [1, 20_000, 100_000, 2**31])
    def test_given_draws_give_the_same_answer_under_any_limit(self, limit):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        samples, inputs = posterior.eval().sample(8), torch.randn(10, 4)
        with torch.no_grad():
            expected = posterior(inputs, samples).softmax(-1).mean(0)
        predictive = bbh.predict(posterior, inputs, samples=samples, memory_limit=limit)
        torch.testing.assert_close(predictive.mean, expected)
        assert predictive.num_samples == 8

    def test_one_draw_is_the_same_under_any_limit(self):
        # More draws need not be: they are seeded by the piece, and the limit sets the pieces.
        posterior = bbh.methods.bayes_by_hypernet(mlp(), Categorical(), generator=SMALL)
        inputs = torch.randn(10, 4)
        means = [seeded(posterior, inputs, 1, memory_limit=m).mean for m in (1, 10**5, 2**31)]
        torch.testing.assert_close(means[0], means[1])
        torch.testing.assert_close(means[0], means[2])

    def test_the_limit_changes_which_draws_but_not_their_distribution(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical(), initial_scale=0.3)
        inputs = torch.randn(1, 4)
        few = bbh.predict(posterior, inputs, 2000, memory_limit=2**20, keep_draws=True)
        many = bbh.predict(posterior, inputs, 2000, keep_draws=True)
        for part in (few, many):
            assert part.draws.unique(dim=0).shape == (2000, 1, 3)
        error = (few.draws.var(0) / 2000 + many.draws.var(0) / 2000).sqrt()
        assert ((few.mean - many.mean).abs() < 4 * error).all()

    def test_fresh_draws_in_every_call(self):
        posterior = bbh.methods.bayes_by_hypernet(mlp(), Categorical(), generator=SMALL)
        inputs = torch.randn(4, 4)
        for limit in (1, 2**31):
            first = bbh.predict(posterior, inputs, 3, memory_limit=limit).mean
            second = bbh.predict(posterior, inputs, 3, memory_limit=limit).mean
            assert not torch.allclose(first, second)

    def test_each_member_is_used_once(self):
        point = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        assert bbh.predict(point, torch.randn(3, 4)).num_samples == 1
        posterior, members = ensemble_of_linear(Categorical())
        inputs = torch.randn(6, 2)
        predictive = bbh.predict(posterior, inputs, 100, keep_draws=True)
        assert predictive.num_samples == 4
        with torch.no_grad():
            expected = torch.stack([member(inputs).softmax(-1) for member in members])
        torch.testing.assert_close(predictive.draws, expected)
        torch.testing.assert_close(predictive.mean, expected.mean(0))

    def test_fewer_draws_than_members_are_different_members(self):
        posterior, members = ensemble_of_linear(Categorical())
        inputs = torch.randn(6, 2)
        with torch.no_grad():
            known = torch.stack([member(inputs).softmax(-1) for member in members])
        for _ in range(5):
            draws = bbh.predict(posterior, inputs, 3, keep_draws=True).draws
            used = [int((known - draw).abs().amax((1, 2)).argmin()) for draw in draws]
            torch.testing.assert_close(draws, known[used])
            assert len(set(used)) == 3


class TestQuantities:
    @over_methods
    def test_kept_draws_give_the_summaries(self, method):
        posterior, inputs = method(mlp(), Categorical()), torch.randn(13, 4)
        predictive = seeded(posterior, inputs, 10, keep_draws=True)
        draws = predictive.draws
        assert draws.shape == (predictive.num_samples, 13, 3)
        torch.testing.assert_close(draws.sum(-1), torch.ones(draws.shape[:2]))
        mean = draws.mean(0)
        torch.testing.assert_close(predictive.mean, mean)
        torch.testing.assert_close(predictive.entropy, -(mean * mean.log()).sum(-1))
        single = -(draws * draws.log()).sum(-1).mean(0)
        torch.testing.assert_close(predictive.expected_entropy, single)
        information = (-(mean * mean.log()).sum(-1) - single).clamp(min=0)
        torch.testing.assert_close(predictive.mutual_information, information, rtol=1e-3, atol=1e-5)
        assert torch.equal(predictive.labels, mean.argmax(-1))
        torch.testing.assert_close(predictive.confidence, mean.amax(-1))
        without = seeded(posterior, inputs, 10)
        assert without.draws is None
        torch.testing.assert_close(without.mean, predictive.mean)

    def test_yes_or_no(self):
        posterior, members = ensemble_of_linear(bbh.likelihoods.Bernoulli())
        inputs = torch.randn(6, 2)
        predictive = bbh.predict(posterior, inputs, keep_draws=True)
        with torch.no_grad():
            draws = torch.stack([member(inputs).sigmoid() for member in members])
        torch.testing.assert_close(predictive.draws, draws)
        torch.testing.assert_close(predictive.mean, draws.mean(0))
        assert torch.equal(predictive.labels, (draws.mean(0) > 0.5).long())

    def test_regression(self):
        posterior, members = ensemble_of_linear(bbh.likelihoods.Gaussian(0.5))
        inputs = torch.randn(6, 2)
        predictive = bbh.predict(posterior, inputs, batch_size=4)
        with torch.no_grad():
            locs = torch.stack([member(inputs) for member in members])
        torch.testing.assert_close(predictive.locs, locs)
        torch.testing.assert_close(predictive.scales, torch.full_like(locs, 0.5))
        torch.testing.assert_close(predictive.mean, locs.mean(0))
        torch.testing.assert_close(predictive.epistemic_std, locs.std(0, correction=0))
        torch.testing.assert_close(predictive.aleatoric_std, torch.full((6, 3), 0.5))
        total = (locs.var(0, correction=0) + 0.25).sqrt()
        torch.testing.assert_close(predictive.total_std, total)

    def test_regression_with_predicted_noise(self):
        network = nn.Linear(2, 4)
        likelihood = bbh.likelihoods.HeteroscedasticGaussian(min_scale=0.1)
        posterior = bbh.methods.maximum_a_posteriori(network, likelihood)
        inputs = torch.randn(6, 2)
        predictive = bbh.predict(posterior, inputs)
        with torch.no_grad():
            outputs = network(inputs)
        torch.testing.assert_close(predictive.locs, outputs[None, :, :2])
        scales = 0.1 + nn.functional.softplus(outputs[None, :, 2:])
        torch.testing.assert_close(predictive.scales, scales)

    def test_no_gradient_is_recorded(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        assert not bbh.predict(posterior, torch.randn(3, 4), 2).mean.requires_grad


class TestEvaluate:
    def test_classes_by_hand(self):
        posterior, members = ensemble_of_linear(Categorical())
        inputs, targets = torch.randn(40, 2), torch.randint(0, 3, (40,))
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=7)
        measured = bbh.evaluate(posterior, loader)
        with torch.no_grad():
            mean = torch.stack([member(inputs).softmax(-1) for member in members]).mean(0)
        wrong = (mean.argmax(-1) != targets).double().mean().item()
        assert measured["error"] == pytest.approx(100 * wrong)
        nll = -mean[torch.arange(40), targets].log().mean().item()
        assert measured["nll"] == pytest.approx(nll, rel=1e-5)
        truth = nn.functional.one_hot(targets, 3)
        assert measured["brier"] == pytest.approx((mean - truth).square().sum(-1).mean().item())
        assert 0 <= measured["ece"] <= 100

    def test_regression_by_hand(self):
        posterior, members = ensemble_of_linear(bbh.likelihoods.Gaussian(0.5))
        inputs, targets = torch.randn(20, 2), torch.randn(20, 3)
        measured = bbh.evaluate(posterior, [(inputs, targets)])
        with torch.no_grad():
            locs = torch.stack([member(inputs) for member in members]).double()
        rmse = (locs.mean(0) - targets).square().mean().sqrt().item()
        assert measured["error"] == pytest.approx(rmse, rel=1e-5)
        squared = ((targets - locs) / 0.5).square()
        log_prob = -0.5 * squared - math.log(0.5) - 0.5 * math.log(2 * math.pi)
        mixture = torch.logsumexp(log_prob.sum(-1), dim=0) - math.log(4)
        assert measured["nll"] == pytest.approx(-mixture.mean().item(), rel=1e-5)
        assert 0 <= measured["coverage_95"] <= 1

    def test_batches_of_three_and_dictionaries(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        inputs, targets = torch.randn(8, 4), torch.randint(0, 3, (8,))
        plain = bbh.evaluate(posterior, [(inputs, targets)])
        assert bbh.evaluate(posterior, [(inputs, targets, torch.ones(8))]) == plain
        assert bbh.evaluate(posterior, [{"input": inputs, "labels": targets}]) == plain

    def test_given_draws(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical(), initial_scale=0.5)
        batch = (torch.randn(8, 4), torch.randint(0, 3, (8,)))
        samples = posterior.eval().sample(3)
        first = bbh.evaluate(posterior, [batch], samples=samples)
        assert bbh.evaluate(posterior, [batch], samples=samples) == first
        assert bbh.evaluate(posterior, [batch], 3) != first


class TestMode:
    @pytest.mark.parametrize("training", [True, False])
    @over_methods
    def test_mode_and_state_are_left_alone(self, method, training):
        posterior = method(BatchNormNet(), Categorical()).train(training)
        before = {name: value.clone() for name, value in posterior.state_dict().items()}
        bbh.predict(posterior, torch.randn(5, 1, 6, 6), 3)
        assert posterior.training is training
        assert posterior.network.norm.training is training
        for name, value in posterior.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_mode_is_restored_after_an_error(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical()).train()
        with pytest.raises(RuntimeError):
            bbh.predict(posterior, torch.randn(5, 99))
        assert posterior.training
        assert posterior.network.training

    def test_own_dropout_stays_on_for_mc_dropout_only(self):
        network, inputs = dropout_mlp(), torch.randn(50, 4)
        on = bbh.methods.mc_dropout(network, Categorical())
        predictive = bbh.predict(on, inputs, 30, keep_draws=True)
        assert predictive.num_samples == 30
        spread = predictive.draws.std(0)
        assert (spread.amax(-1) > 0).double().mean() > 0.9
        assert predictive.mutual_information.mean() > 0
        off = bbh.methods.maximum_a_posteriori(network, Categorical())
        with torch.no_grad():
            expected = network.eval()(inputs).softmax(-1)
        torch.testing.assert_close(bbh.predict(off, inputs).mean, expected)

    def test_own_dropout_has_the_known_distribution(self):
        """One hidden unit, kept with probability 0.7 and then scaled up."""
        network = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.3), nn.Linear(1, 1))
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), (1.0, 0.0, 1.0, 0.0), strict=True):
                parameter.fill_(value)
        posterior = bbh.methods.mc_dropout(network, bbh.likelihoods.Gaussian())
        locs = bbh.predict(posterior, torch.ones(400, 1), 25).locs
        kept = (locs != 0).double().mean().item()
        assert kept == pytest.approx(0.7, abs=4 * math.sqrt(0.21 / 10_000))
        torch.testing.assert_close(locs[locs != 0], torch.full_like(locs[locs != 0], 1 / 0.7))


def test_a_learned_noise_leaves_no_gradient_in_predictions():
    likelihood = bbh.likelihoods.Gaussian(0.3, learned=True)
    posterior = bbh.methods.bayes_by_backprop(nn.Linear(2, 1), likelihood)
    predictive = bbh.predict(posterior, torch.randn(4, 2), num_samples=3)
    assert not predictive.scales.requires_grad
    assert not predictive.total_std.requires_grad
