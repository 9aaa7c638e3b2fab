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
        value, gradient = loss_of(posterior, posterior.sample(5)).gradient(inputs)
        expected = closed_form_gradient(weight, bias, inputs, LABELS)
        torch.testing.assert_close(gradient, expected.float())
        expected_value = averaged_loss(posterior, inputs, LABELS, posterior.sample(5))
        torch.testing.assert_close(value.float(), expected_value)

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
            value, gradient = chunked.gradient(inputs)
            torch.testing.assert_close(value, loss(inputs).detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(chunked.value(inputs), value)
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)

    def test_of_a_sure_network_has_the_target_s_part(self):
        # The second logit is 25 below the first: in float32, 1 − p is exactly 0.
        network = nn.Linear(2, 2, bias=False)
        network.weight.data = torch.tensor([[50.0, -1.0], [0.0, 2.0]])
        posterior = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs, labels = torch.tensor([[0.5, 0.0]]), torch.tensor([0])
        _, gradient = loss_of(posterior, posterior.sample(1), labels).gradient(inputs)
        p_wrong = 1 / (1 + math.exp(25))
        expected = p_wrong * torch.tensor([[-50.0, 3.0]])
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=0)
        # Squares of such gradients underflow, lengths must not.
        step = L2().steepest(gradient * 1e-20)
        torch.testing.assert_close(step, expected / expected.norm(), rtol=1e-4, atol=0)

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
        torch.testing.assert_close(loss.value(inputs), loss.gradient(inputs)[0], rtol=0, atol=0)
        assert not torch.equal(loss.value(inputs), loss.renewed().value(inputs))


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
            assert (attacked.loss >= one_step.loss).all()
            assert (attacked.loss >= attacked.clean_loss).all()
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
