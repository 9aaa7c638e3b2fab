"""The attacks themselves: closed forms on linear networks, exact gradients in chunks."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bbh
from attacks.linear import (
    LABELS,
    Categorical,
    assert_same,
    assert_same_direction,
    averaged_loss,
    closed_form_gradient,
    images,
    linear_ensemble,
    loss_of,
    over_norms,
)
from bbh.attacks import (
    FGSM,
    L2,
    PGD,
    LegacyFGSM,
    LInf,
    Norm,
)
from bbh.attacks.loss import AveragedLoss
from bbh.prediction.draws import Draws
from scenarios import SmallLeNet, dropout_mlp, mlp, over_methods


class TestGradient:
    def test_of_a_linear_ensemble_is_the_closed_form(self):
        posterior, weight, bias = linear_ensemble()
        inputs = images()
        height, ascent = loss_of(posterior, posterior.sample(5)).ascent(inputs)
        expected = closed_form_gradient(weight, bias, inputs, LABELS)
        assert_same_direction(ascent, expected.float())
        expected_value = averaged_loss(posterior, inputs, LABELS, posterior.sample(5))
        torch.testing.assert_close(height.loss.float(), expected_value)
        probs = bbh.predict(posterior, inputs).mean
        of_target = probs[torch.arange(6), LABELS]
        others = probs.masked_fill(nn.functional.one_hot(LABELS, 3).bool(), 0.0).amax(1)
        torch.testing.assert_close(height.margin.float(), (others / of_target).log())

    @over_methods
    def test_chunks_of_any_size_give_the_whole(self, method: Any):
        posterior, inputs = method(SmallLeNet(), Categorical()), torch.rand(6, 1, 5, 5)
        posterior.eval()
        with torch.no_grad():
            samples = posterior.sample(7)

        def loss(moved: Tensor) -> Tensor:
            log_probs = posterior(moved, samples).double().log_softmax(-1)
            chosen = log_probs[:, torch.arange(6), LABELS]
            return math.log(7) - chosen.logsumexp(0)

        leaf = inputs.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf).sum(), leaf)
        for at_once in (1, 2, 3, 7, 100):
            chunked = loss_of(posterior, samples, at_once=at_once)
            height, ascent = chunked.ascent(inputs)
            torch.testing.assert_close(height.loss, loss(inputs).detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(tuple(chunked.value(inputs)), tuple(height))
            assert_same_direction(ascent, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("gap", [25.0, 50.0, 200.0, 1e4])
    def test_of_a_sure_network_has_the_target_s_part(self, gap: float):
        # From a gap of 17 on, 1 − p is exactly 0 in float32, from 37 on in float64, and from 104 on
        # there is no float32 for the gradient.
        network = nn.Linear(2, 2, bias=False)
        network.weight.data = torch.tensor([[2 * gap, -1.0], [0.0, 2.0]])
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = torch.tensor([[0.5, 0.0]]), torch.tensor([0])
        height, ascent = loss_of(posterior, posterior.sample(1), labels).ascent(inputs)
        expected = torch.tensor([[-2 * gap, 3.0]])
        assert_same_direction(ascent, expected)
        assert height.margin.item() == -gap
        assert height.loss.item() == pytest.approx(math.exp(-gap), rel=1e-12)
        # Squares of small gradients underflow, lengths must not.
        step = L2().steepest(ascent * 1e-30)
        torch.testing.assert_close(step, expected / expected.norm(), rtol=1e-4, atol=0)

    def test_of_an_ensemble_of_sure_members_is_that_of_their_average(self):
        """∇L = −Σ_s p_s(1 − p_s) ∇m_s / Σ_s p_s, in exact arithmetic."""
        posterior, _, _ = linear_ensemble(2)
        # Logits of class 0 are 60 and 61 above those of class 1, and class 2 is out of reach.
        weights = torch.tensor(
            [[[1.0, 0, 0, 0]] + [[0.0] * 4] * 2, [[0, 1.0, 0, 0]] + [[0.0] * 4] * 2]
        )
        gaps = torch.tensor([60.0, 61.0])
        biases = torch.stack([gaps, torch.zeros(2), torch.full((2,), -1e3)], 1)
        draws = {"weight": weights, "bias": biases}
        inputs, labels = torch.zeros(1, 4), torch.tensor([0])
        for at_once in (1, 2):
            height, ascent = loss_of(posterior, draws, labels, at_once).ascent(inputs)
            wrong = math.exp(-60), math.exp(-61)
            expected = -torch.tensor([[wrong[0], wrong[1], 0, 0]]) / sum(wrong)
            torch.testing.assert_close(ascent, expected)
            assert height.loss.item() == pytest.approx(sum(wrong) / 2, rel=1e-9)
            assert height.margin.item() == pytest.approx(math.log(sum(wrong) / 2), rel=1e-9)

    @pytest.mark.parametrize("column", [True, False])
    def test_of_yes_and_no_is_that_of_two_classes(self, column: bool):
        network = nn.Linear(4, 1)
        two = nn.Linear(4, 2)
        two.weight.data = torch.cat([torch.zeros(1, 4), 300 * network.weight.data])
        two.bias.data = torch.tensor([0.0, 120.0])
        network.weight.data = 300 * network.weight.data
        network.bias.data.fill_(120.0)
        inputs, labels = images(), torch.tensor([0, 1, 0, 1, 0, 1])
        yes_no = bbh.methods.maximum_a_posteriori(
            network,
            bbh.likelihoods.Bernoulli(),
            forward=None if column else lambda net, batch: net(batch).squeeze(-1),
        )
        classes = bbh.methods.maximum_a_posteriori(two, Categorical())
        answers = labels.float().unsqueeze(1) if column else labels.float()
        for attack in (FGSM(), PGD(steps=3), LegacyFGSM()):
            assert_same(attack(yes_no, inputs, answers, 0.1), attack(classes, inputs, labels, 0.1))

    def test_of_uncertain_answers_and_several_outputs_is_the_losses(self):
        network = nn.Linear(4, 3)
        inputs = images()
        yes_no = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Bernoulli())
        several = bbh.methods.maximum_a_posteriori(
            network,
            Categorical(),
            forward=lambda net, batch: net(batch).unsqueeze(1).expand(-1, 2, -1),
        )
        answers = torch.rand(6, 3)
        positions = torch.stack([LABELS, LABELS], 1)
        leaf = inputs.clone().requires_grad_()
        loss = nn.functional.binary_cross_entropy_with_logits(
            network(leaf), answers, reduction="sum"
        )
        (expected,) = torch.autograd.grad(loss, leaf)
        height, ascent = loss_of(yes_no, yes_no.sample(1), answers).ascent(inputs)
        torch.testing.assert_close(ascent, expected)
        assert torch.equal(height.loss, height.margin)
        one = bbh.methods.maximum_a_posteriori(network, Categorical())
        twice = loss_of(several, several.sample(1), positions).value(inputs).loss
        torch.testing.assert_close(twice, 2 * loss_of(one, one.sample(1)).value(inputs).loss)

    def test_class_weights_are_no_shield(self):
        network = nn.Linear(4, 3)
        plain = bbh.methods.maximum_a_posteriori(network, Categorical())
        weighted = bbh.methods.maximum_a_posteriori(network, Categorical((0.0, 1.0, 5.0)))
        inputs = images()
        assert_same(FGSM()(weighted, inputs, LABELS, 0.1), FGSM()(plain, inputs, LABELS, 0.1))

    def test_own_dropout_layers_are_one_function_for_one_attack(self):
        posterior = bbh.methods.mc_dropout(dropout_mlp(), Categorical())
        inputs = images()
        loss = AveragedLoss(posterior.eval(), Draws(posterior, 5, None, 0), LABELS, 2, None)
        at_inputs = loss.value(inputs)
        torch.testing.assert_close(tuple(at_inputs), tuple(loss.ascent(inputs)[0]), rtol=0, atol=0)
        assert not torch.equal(at_inputs.loss, loss.renewed().value(inputs).loss)


class TestFGSM:
    def test_in_linf_moves_every_input_by_epsilon_against_the_target(self):
        posterior, weight, bias = linear_ensemble()
        inputs = images()
        attacked = FGSM()(posterior, inputs, LABELS, 0.1)
        signs = closed_form_gradient(weight, bias, inputs, LABELS).sign().float()
        torch.testing.assert_close(attacked.inputs, inputs + 0.1 * signs)
        torch.testing.assert_close(attacked.size(LInf()), torch.full((6,), 0.1))
        torch.testing.assert_close(attacked.size(L2()), torch.full((6,), 0.2))

    def test_in_l2_moves_along_the_gradient(self):
        posterior, weight, bias = linear_ensemble()
        inputs = images()
        attacked = FGSM(norm=L2())(posterior, inputs, LABELS, 0.1)
        gradient = closed_form_gradient(weight, bias, inputs, LABELS).float()
        expected = inputs + 0.1 * gradient / gradient.norm(dim=1, keepdim=True)
        torch.testing.assert_close(attacked.inputs, expected)
        torch.testing.assert_close(attacked.size(L2()), torch.full((6,), 0.1))

    def test_two_classes_need_no_gradient(self):
        """−log σ(margin): the attack is −sign(w_y − w_other), whatever the inputs."""
        network = nn.Linear(4, 2)
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = images(), torch.tensor([0, 1, 0, 1, 0, 1])
        apart = (network.weight[0] - network.weight[1]).detach()
        towards = (1 - 2 * labels).unsqueeze(1) * apart
        attacked = FGSM()(posterior, inputs, labels, 0.05)
        torch.testing.assert_close(attacked.inputs, inputs - 0.05 * towards.sign())
        attacked = FGSM(norm=L2())(posterior, inputs, labels, 0.05)
        torch.testing.assert_close(attacked.inputs, inputs - 0.05 * towards / apart.norm())

    def test_losses_are_those_of_the_averaged_predictive(self):
        posterior, _, _ = linear_ensemble()
        inputs, samples = images(), posterior.sample(5)
        attacked = FGSM()(posterior, inputs, LABELS, 0.1)
        before = averaged_loss(posterior, inputs, LABELS, samples)
        after = averaged_loss(posterior, attacked.inputs, LABELS, samples)
        torch.testing.assert_close(attacked.clean_loss.float(), before)
        torch.testing.assert_close(attacked.loss.float(), after)
        assert (after > before).all()

    def test_regression_moves_away_from_the_target(self):
        network = nn.Linear(4, 1)
        posterior = bbh.methods.maximum_a_posteriori(network, bbh.likelihoods.Gaussian(0.1))
        inputs = images()
        with torch.no_grad():
            targets = network(inputs) - torch.tensor([[1.0], [-1.0]] * 3)
            expected = inputs + 0.1 * (network(inputs) - targets).sign() * network.weight.sign()
        torch.testing.assert_close(FGSM()(posterior, inputs, targets, 0.1).inputs, expected)


class TestLegacy:
    def test_averages_the_images_of_single_draws(self):
        posterior, weight, bias = linear_ensemble()
        inputs = images()
        each = [
            inputs
            + 0.3 * closed_form_gradient(weight[s, None], bias[s, None], inputs, LABELS).sign()
            for s in range(5)
        ]
        for limit in (2**30, 1):  # all draws at once, one by one
            attacked = LegacyFGSM(memory_limit=limit)(posterior, inputs, LABELS, 0.3)
            torch.testing.assert_close(attacked.inputs, torch.stack(each).mean(0).float())

    @over_norms
    def test_is_no_larger_than_epsilon_and_smaller_where_draws_disagree(self, norm: Norm):
        posterior, _, _ = linear_ensemble()
        sizes = LegacyFGSM(norm=norm)(posterior, images(), LABELS, 0.3).size(norm)
        assert (sizes <= 0.3 + 1e-6).all()
        assert sizes.mean() < 0.29

    def test_of_one_draw_is_fgsm_without_clipping(self):
        posterior = bbh.methods.maximum_a_posteriori(mlp(), Categorical())
        inputs = images()
        expected = FGSM(bounds=None)(posterior, inputs, LABELS, 0.9)
        assert_same(LegacyFGSM()(posterior, inputs, LABELS, 0.9), expected)


class TestPGD:
    @over_methods
    @over_norms
    def test_is_never_weaker_than_fgsm_nor_than_nothing(self, method: Any, norm: Norm):
        posterior, inputs = method(SmallLeNet(), Categorical()), torch.rand(6, 1, 5, 5)
        with torch.no_grad():
            samples = posterior.eval().sample(4)
        one_step = FGSM(norm=norm)(posterior, inputs, LABELS, 0.3, samples=samples)
        # Steps that lead astray: the best point is kept all the same.
        for steps, share in ((5, None), (2, 50.0), (3, 1e-6)):
            attack = PGD(norm=norm, steps=steps, relative_step_size=share, random_start=steps == 2)
            attacked = attack(posterior, inputs, LABELS, 0.3, samples=samples)
            margins = [
                loss_of(posterior, samples).value(inputs).margin
                for inputs in (attacked.inputs, one_step.inputs, attacked.clean_inputs)
            ]
            assert (margins[0] >= torch.maximum(margins[1], margins[2]) - 1e-6).all()
            assert (attacked.size(norm) <= 0.3 + 1e-6).all()
            after = averaged_loss(posterior, attacked.inputs, LABELS, samples)
            torch.testing.assert_close(attacked.loss.float(), after)

    @over_norms
    def test_finds_the_worst_point_of_a_two_class_linear_network(self, norm: Norm):
        """There the worst point of the ball is known, and FGSM is already at it."""
        network = nn.Linear(4, 2)
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = images(), torch.zeros(6, dtype=torch.long)
        apart = (network.weight[0] - network.weight[1]).detach()
        dual = apart.abs().sum() if isinstance(norm, LInf) else apart.norm()
        with torch.no_grad():
            margin = network(inputs) @ torch.tensor([1.0, -1.0]) - 0.2 * dual
        worst = nn.functional.softplus(-margin)
        attacks = (
            FGSM(norm=norm),
            PGD(norm=norm, random_start=True),
            PGD(norm=norm, fresh_draws=True),
        )
        for attack in attacks:
            loss = attack(posterior, inputs, labels, 0.2).loss
            torch.testing.assert_close(loss.float(), worst)

    def test_climbs_a_peak_that_one_step_jumps_over(self):
        class Peak(nn.Module):
            """Class 1 is least probable at 0.35, with log 2."""

            def __init__(self):
                super().__init__()
                self.sharpness = nn.Parameter(torch.tensor(100.0))

            def forward(self, inputs: Tensor) -> Tensor:
                logit = self.sharpness * (inputs - 0.35).square()
                return torch.cat([torch.zeros_like(logit), logit], dim=-1)

        posterior = bbh.methods.maximum_a_posteriori(Peak(), Categorical())
        inputs, labels = torch.tensor([[0.21]]), torch.tensor([1])
        over = FGSM()(posterior, inputs, labels, 0.3)
        torch.testing.assert_close(over.inputs, torch.tensor([[0.51]]))
        # Steps of 2.5 · 0.3 / 20 end within half a step of the peak.
        up = PGD()(posterior, inputs, labels, 0.3)
        torch.testing.assert_close(up.inputs, torch.tensor([[0.35]]), atol=0.01875, rtol=0)
        assert up.loss > 0.65 > 0.1 > over.loss

    @over_norms
    @pytest.mark.parametrize("gap", [50.0, 120.0, 1e4])
    def test_moves_a_network_however_sure_it_is(self, norm: Norm, gap: float):
        """One logit is ahead by a gap, and would lose more than that within reach."""
        network = nn.Linear(4, 3)
        with torch.no_grad():
            network.weight.zero_()
            network.weight[0] = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 4 * gap
            network.bias.copy_(torch.tensor([gap, 0.0, -1.0]))
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = torch.full((1, 4), 0.5), torch.tensor([0])
        reach = 0.1 if isinstance(norm, LInf) else 0.2
        worst = torch.tensor([[0.4, 0.6, 0.4, 0.6]])
        for attack in (FGSM(norm=norm), PGD(norm=norm), LegacyFGSM(norm=norm)):
            attacked = attack(posterior, inputs, labels, reach)
            torch.testing.assert_close(attacked.inputs, worst)
            assert bbh.predict(posterior, attacked.inputs).labels.item() == 1

    def test_steps_back_from_a_surer_mistake_to_the_true_class(self):
        """A network that is wrong by 50 already: attacks keep it wrong, and by no less."""
        network = nn.Linear(2, 2, bias=False)
        network.weight.data = torch.tensor([[-100.0, 1.0], [0.0, 0.0]])
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = torch.tensor([[0.5, 0.5]]), torch.tensor([0])
        attacked = PGD()(posterior, inputs, labels, 0.1)
        torch.testing.assert_close(attacked.inputs, torch.tensor([[0.6, 0.4]]))
        torch.testing.assert_close(attacked.loss, torch.tensor([59.6], dtype=torch.float64))

    def test_succeeds_where_fgsm_does_although_another_loss_is_higher(self):
        class Table(nn.Module):
            """Class probabilities of three places, one after the other along the input."""

            def __init__(self):
                super().__init__()
                places = [[0.70, 0.20, 0.10], [0.40, 0.31, 0.29], [0.45, 0.54, 0.01]]
                self.logits = nn.Parameter(torch.tensor(places).log())

            def forward(self, inputs: Tensor) -> Tensor:
                # Linear between the places 0, 0.5 and 1.
                share = 2 * inputs
                first = self.logits[0] + share * (self.logits[1] - self.logits[0])
                last = self.logits[1] + (share - 1) * (self.logits[2] - self.logits[1])
                return torch.where(inputs < 0.5, first, last)

        posterior = bbh.methods.maximum_a_posteriori(Table(), Categorical())
        inputs, labels = torch.zeros(1, 1), torch.tensor([0])
        one_step = FGSM()(posterior, inputs, labels, 1.0)
        half_way = FGSM()(posterior, inputs, labels, 0.5)
        assert half_way.loss > one_step.loss  # the highest loss, and still the right class
        assert bbh.predict(posterior, half_way.inputs).labels.item() == 0
        assert bbh.predict(posterior, one_step.inputs).labels.item() == 1
        attacked = PGD(steps=2, relative_step_size=0.5)(posterior, inputs, labels, 1.0)
        assert bbh.predict(posterior, attacked.inputs).labels.item() == 1

    def test_ties_stay_with_the_clean_input(self):
        network = nn.Linear(4, 3)
        network.weight.data.zero_()
        network.bias.data = torch.tensor([50.0, 0.0, 0.0])
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = images(), torch.zeros(6, dtype=torch.long)
        attacked = PGD(random_start=True)(posterior, inputs, labels, 0.3)
        assert torch.equal(attacked.inputs, inputs)

    def test_classes_that_are_ruled_out_do_no_harm(self):
        network = nn.Linear(4, 3)
        posterior = bbh.methods.maximum_a_posteriori(
            network,
            Categorical(),
            forward=lambda net, batch: net(batch) + torch.tensor([0.0, -torch.inf, -torch.inf]),
        )
        for attack in (FGSM(), PGD(steps=3), LegacyFGSM()):
            attacked = attack(posterior, images(), torch.zeros(6, dtype=torch.long), 0.1)
            assert attacked.inputs.isfinite().all()
            assert (attacked.loss == 0).all()

    def test_fresh_draws_are_fresh_in_every_step(self, monkeypatch: pytest.MonkeyPatch):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        inputs = images()
        made: list[Draws] = []
        renewed = Draws.renewed

        def recorded(draws: Draws) -> Draws:
            made.append(renewed(draws))
            return made[-1]

        monkeypatch.setattr(Draws, "renewed", recorded)
        PGD(steps=3, num_samples=2, fresh_draws=True)(posterior, inputs, LABELS, 0.1)
        first_weights = {float(draws.first()["0.weight"].flatten()[0]) for draws in made}
        assert len(first_weights) == 3
        made.clear()
        PGD(steps=3, num_samples=2)(posterior, inputs, LABELS, 0.1)
        assert not made

    @over_norms
    def test_random_starts_fill_the_ball(self, norm: Norm):
        starts = norm.random(torch.empty(4000, 3, 1))
        sizes = norm.size(starts)
        assert sizes.max() <= 1 + 1e-6
        # Uniform over a ball in three dimensions: P(size < r) = r³.
        torch.testing.assert_close(sizes.pow(3).mean(), torch.tensor(0.5), atol=0.02, rtol=0)
        torch.testing.assert_close(starts.mean(0), torch.zeros(3, 1), atol=0.05, rtol=0)
