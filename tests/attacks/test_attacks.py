"""Attacks: closed forms on linear networks, exact gradients in chunks, sizes, transfer, errors."""

import math
import sys
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bbh
from bbh.adapters import AveragedNetwork, foolbox_model
from bbh.attacks import (
    FGSM,
    L2,
    PGD,
    Attack,
    Attacked,
    LegacyFGSM,
    LInf,
    Norm,
    robustness,
)
from bbh.attacks.loss import AveragedLoss
from bbh.prediction.draws import Draws
from bbh.samples import Params
from scenarios import SmallLeNet, dropout_mlp, mlp, over_methods, printed_number

Categorical = bbh.likelihoods.Categorical
over_norms = pytest.mark.parametrize("norm", [LInf(), L2()], ids=["linf", "l2"])
over_attacks = pytest.mark.parametrize(
    "attack", [FGSM, PGD, LegacyFGSM], ids=lambda attack: attack.__name__
)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def images(number: int = 6, features: int = 4) -> Tensor:
    """Far enough from the bounds 0 and 1 for small attacks not to reach them."""
    return 0.4 + 0.2 * torch.rand(number, features)


def linear_ensemble(num_members: int = 5) -> tuple[Any, Tensor, Tensor]:
    """Linear classifiers that disagree, and their weights [S, C, D] and biases [S, C]."""
    posterior = bbh.methods.deep_ensemble(nn.Linear(4, 3), Categorical(), num_members=num_members)
    with torch.no_grad():
        for value in posterior.weights.parameters():
            value.copy_(2 * torch.randn_like(value))
    samples = posterior.sample(num_members)
    return posterior, samples["weight"].detach(), samples["bias"].detach()


def closed_form_gradient(weight: Tensor, bias: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """∇ −log 1/S Σ_s softmax(W_s x + b_s)_y = −Σ_s r_s W_sᵀ(e_y − p_s), r_s ∝ p_s(y)."""
    weight, bias, inputs = weight.double(), bias.double(), inputs.double()
    probs = (torch.einsum("scd,bd->sbc", weight, inputs) + bias.unsqueeze(1)).softmax(-1)
    of_target = probs[:, torch.arange(len(labels)), labels]
    shares = of_target / of_target.sum(0)
    residuals = nn.functional.one_hot(labels, 3) - probs
    return -torch.einsum("sb,sbc,scd->bd", shares, residuals, weight)


def averaged_loss(posterior: Any, inputs: Tensor, labels: Tensor, samples: Params) -> Tensor:
    """−log mean p, from the library's own predictions."""
    probs = bbh.predict(posterior, inputs, samples=samples, keep_draws=True).mean
    return -probs[torch.arange(len(labels)), labels].log()


def loss_of(
    posterior: Any, samples: Params, labels: Tensor = LABELS, at_once: int = 100
) -> AveragedLoss:
    return AveragedLoss(posterior.eval(), Draws(posterior, 1, samples, 0), labels, at_once, None)


def assert_same_direction(first: Tensor, second: Tensor, **tolerances: float) -> None:
    """Equal for every example but for a positive factor."""
    scaled = [
        one / one.flatten(1).abs().amax(1).clamp(min=1e-30).view(-1, *[1] * (one.dim() - 1))
        for one in (first, second)
    ]
    torch.testing.assert_close(*scaled, **tolerances)


def assert_same(first: Attacked, second: Attacked) -> None:
    torch.testing.assert_close(first.inputs, second.inputs)
    torch.testing.assert_close(first.loss, second.loss)
    torch.testing.assert_close(first.clean_loss, second.clean_loss)


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


class TestBounds:
    @over_attacks
    @over_norms
    def test_hold_and_clipping_only_makes_smaller(self, attack: type[Attack], norm: Norm):
        posterior, _, _ = linear_ensemble()
        inputs = torch.rand(6, 4).round(decimals=1)  # some at 0 and 1 exactly
        attacked = attack(norm=norm, bounds=(0.0, 1.0))(posterior, inputs, LABELS, 0.3)
        assert attacked.inputs.min() >= 0
        assert attacked.inputs.max() <= 1
        assert (attacked.size(norm) <= 0.3 + 1e-6).all()

    def test_are_in_the_units_of_the_inputs(self):
        network = nn.Linear(4, 3)
        inputs = images()
        in_unit = bbh.methods.maximum_a_posteriori(network, Categorical())
        in_bytes = bbh.methods.maximum_a_posteriori(
            network, Categorical(), forward=lambda network, pixels: network(pixels / 255)
        )
        expected = FGSM()(in_unit, inputs, LABELS, 0.5).inputs * 255
        attacked = FGSM(bounds=(0, 255))(in_bytes, inputs * 255, LABELS, 127.5).inputs
        torch.testing.assert_close(attacked, expected)

    @over_attacks
    def test_normalised_inside_or_outside_is_the_same(self, attack: type[Attack]):
        mean, std = torch.tensor([0.4, 0.5, 0.6, 0.5]), torch.tensor([0.1, 0.2, 0.3, 0.4])
        network = mlp()

        def normalised(pixels: Tensor) -> Tensor:
            return (pixels - mean) / std

        inside = bbh.methods.maximum_a_posteriori(
            network, Categorical(), forward=lambda network, pixels: network(normalised(pixels))
        )
        outside = bbh.methods.maximum_a_posteriori(network, Categorical())
        inputs = images()
        attacked = attack(preprocess=normalised)(outside, inputs, LABELS, 0.1)
        assert_same(attacked, attack()(inside, inputs, LABELS, 0.1))
        judged = robustness(outside, inputs, LABELS, [0.1], FGSM(preprocess=normalised))
        assert judged == robustness(inside, inputs, LABELS, [0.1])

    def test_none_clips_nothing(self):
        posterior, weight, bias = linear_ensemble()
        inputs = 5 * torch.randn(6, 4)
        attacked = FGSM(bounds=None)(posterior, inputs, LABELS, 2.0)
        signs = closed_form_gradient(weight, bias, inputs, LABELS).sign().float()
        torch.testing.assert_close(attacked.inputs, inputs + 2 * signs)


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


class TestAttack:
    @over_attacks
    def test_batches_and_memory_change_nothing(self, attack: type[Attack]):
        posterior = bbh.methods.bayes_by_backprop(SmallLeNet(), Categorical()).eval()
        inputs = torch.rand(6, 1, 5, 5)
        with torch.no_grad():
            samples = posterior.sample(5)
        whole = attack()(posterior, inputs, LABELS, 0.1, samples=samples)
        parts = attack(memory_limit=1)(posterior, inputs, LABELS, 0.1, samples=samples)
        torch.testing.assert_close(parts.inputs, whole.inputs)
        torch.testing.assert_close(parts.loss, whole.loss, rtol=1e-5, atol=1e-5)

    @over_attacks
    def test_leaves_posterior_gradients_and_mode_alone(self, attack: type[Attack]):
        posterior = bbh.methods.bayes_by_hypernet(mlp(), Categorical()).train()
        before = {name: value.clone() for name, value in posterior.state_dict().items()}
        inputs = images()
        kept = inputs.clone()
        with torch.no_grad():  # a caller's habit around evaluation
            attacked = attack(num_samples=3)(posterior, inputs, LABELS, 0.1)
        assert posterior.training
        assert torch.equal(inputs, kept)
        assert not attacked.inputs.requires_grad
        assert all(value.grad is None for value in posterior.parameters())
        torch.testing.assert_close(dict(posterior.state_dict()), before)

    @over_attacks
    def test_of_size_zero_changes_nothing(self, attack: type[Attack]):
        posterior, _, _ = linear_ensemble()
        inputs = images()
        assert torch.equal(attack()(posterior, inputs, LABELS, 0.0).inputs, inputs)

    @over_attacks
    @over_norms
    def test_a_sweep_is_the_attack_at_each_size(self, attack: type[Attack], norm: Norm):
        posterior = bbh.methods.bayes_by_backprop(SmallLeNet(), Categorical()).eval()
        inputs, sizes = torch.rand(6, 1, 5, 5), [0.3, 0.0, 0.05]
        steps = {"steps": 6} if attack is PGD else {}
        with torch.no_grad():
            samples = posterior.sample(5)
        for limit in (2**30, 1):  # all at once, one image and one draw at a time
            one = attack(norm=norm, memory_limit=limit, **steps)
            swept = one.sweep(posterior, inputs, LABELS, sizes, samples=samples)
            assert [attacked.epsilon for attacked in swept] == sizes
            for attacked, size in zip(swept, sizes, strict=True):
                assert_same(attacked, one(posterior, inputs, LABELS, size, samples=samples))

    @pytest.mark.parametrize(
        ("attack", "passes"),
        [(FGSM(), 1), (LegacyFGSM(), 1), (PGD(steps=5), 1 + 2 * 4)],
        ids=["FGSM", "LegacyFGSM", "PGD"],
    )
    def test_a_sweep_asks_for_the_clean_gradient_once(
        self, attack: Attack, passes: int, monkeypatch: pytest.MonkeyPatch
    ):
        posterior, _, _ = linear_ensemble()
        inputs, asked = images(), []
        for name in ("ascent", "mean_over_draws"):
            real = getattr(AveragedLoss, name)

            def counted(self: AveragedLoss, inputs: Tensor, *rest: Any, real: Any = real) -> Any:
                if len(inputs) == 6:  # one more is a trial that measures memory
                    asked.append(inputs)
                return real(self, inputs, *rest)

            monkeypatch.setattr(AveragedLoss, name, counted)
        attack.sweep(posterior, inputs, LABELS, [0.0, 0.1, 0.2])
        assert len(asked) == passes

    def test_same_seed_same_attack(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        inputs, results = images(), []
        for _ in range(2):
            torch.manual_seed(3)
            results.append(PGD(num_samples=3, steps=3)(posterior, inputs, LABELS, 0.1))
        assert_same(*results)

    def test_many_images_and_draws_stay_within_the_memory_limit(self):
        """At once, the activations of LeNet's convolutions would take over a gigabyte."""
        script = """
import resource, torch, bbh
from scenarios import LeNet
torch.set_num_threads(1)
posterior = bbh.methods.deep_ensemble(LeNet(), bbh.likelihoods.Categorical(), num_members=4)
images, labels = torch.rand(1000, 1, 28, 28), torch.randint(10, (1000,))
attack = bbh.attacks.FGSM(memory_limit=2**27)
attack(posterior, images[:1], labels[:1], 0.1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
attack(posterior, images, labels, 0.1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        assert printed_number(script) * 1024 < 2**27


class TestRobustness:
    def test_rows_are_what_prediction_and_metrics_say(self):
        posterior, _, _ = linear_ensemble()
        inputs = torch.rand(40, 4)
        labels = bbh.predict(posterior, inputs).labels
        rows = robustness(posterior, inputs, labels, [0.0, 0.1, 0.5], FGSM(norm=L2()))
        clean = bbh.predict(posterior, inputs)
        for row, epsilon in zip(rows, [0.0, 0.1, 0.5], strict=True):
            attacked = FGSM(norm=L2())(posterior, inputs, labels, epsilon)
            predictive = bbh.predict(posterior, attacked.inputs)
            information = predictive.mutual_information
            expected = (
                epsilon,
                float((predictive.labels == labels).float().mean()),
                float(predictive.entropy.mean()) / math.log(3),
                float(information.mean()),
                bbh.metrics.auroc(clean.entropy, predictive.entropy),
                bbh.metrics.auroc(clean.mutual_information, information),
                float(attacked.size(LInf()).mean()),
                float(attacked.size(L2()).mean()),
            )
            assert astuple(row) == pytest.approx(expected, abs=1e-5)
        # Clean inputs cannot be told from themselves.
        assert rows[0].auroc_entropy == pytest.approx(0.5)
        assert rows[0].auroc_mutual_information == pytest.approx(0.5)
        assert rows[0].accuracy == 1 > rows[2].accuracy

    def test_transfer_attacks_one_posterior_and_judges_another(self):
        source, _, _ = linear_ensemble()
        victim, _, _ = linear_ensemble()
        inputs = images(40)
        labels = bbh.predict(victim, inputs).labels
        (row,) = robustness(victim, inputs, labels, [0.2], source=source)
        moved = FGSM()(source, inputs, labels, 0.2).inputs
        assert row.accuracy == bbh.metrics.accuracy(bbh.predict(victim, moved).mean, labels)
        (white_box,) = robustness(victim, inputs, labels, [0.2])
        assert white_box.accuracy < row.accuracy <= 1  # networks that share nothing

    def test_evaluation_never_sees_the_draws_of_the_attack(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical())
        seen: list[float] = []
        sample = posterior.weights.sample

        def recorded(num_samples: int):
            draws = sample(num_samples)
            seen.extend(draws["0.weight"][:, 0, 0].tolist() if num_samples == 8 else [])
            return draws

        posterior.weights.sample = recorded
        robustness(posterior, images(), LABELS, [0.1, 0.2], FGSM(num_samples=8), num_samples=8)
        # Eight for the attack at both sizes, eight for the one prediction, none twice.
        assert len(seen) == len(set(seen)) == 16

    def test_given_draws_are_used_by_each_side(self):
        posterior = bbh.methods.bayes_by_backprop(mlp(), Categorical()).eval()
        inputs = images()
        with torch.no_grad():
            ours, theirs = posterior.sample(3), posterior.sample(4)
        (row,) = robustness(posterior, inputs, LABELS, [0.1], samples=ours, attack_samples=theirs)
        moved = FGSM()(posterior, inputs, LABELS, 0.1, samples=theirs).inputs
        expected = bbh.predict(posterior, moved, samples=ours).entropy.mean() / math.log(3)
        assert row.normalised_entropy == pytest.approx(float(expected), abs=1e-6)


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


class TestBadInput:
    @pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
    def test_epsilon(self, epsilon: float):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ValueError, match="a finite number, 0 or more"):
            FGSM()(posterior, images(), LABELS, epsilon)
        with pytest.raises(ValueError, match="a finite number, 0 or more"):
            robustness(posterior, images(), LABELS, [0.1, epsilon])

    @pytest.mark.parametrize("shift", [-1.0, 1.0, math.nan])
    def test_inputs_outside_the_bounds(self, shift: float):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ValueError, match=r"outside bounds=\(0.0, 1.0\).*preprocess="):
            FGSM()(posterior, images() + shift, LABELS, 0.1)
        if math.isnan(shift):
            with pytest.raises(ValueError, match="NaN and infinity cannot be attacked"):
                FGSM(bounds=None)(posterior, images() + shift, LABELS, 0.1)

    def test_integer_inputs_and_several_inputs(self):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(TypeError, match=r"got torch.uint8.*images.float\(\) / 255"):
            FGSM()(posterior, torch.zeros(6, 4, dtype=torch.uint8), LABELS, 0.1)
        with pytest.raises(TypeError, match="one floating-point tensor; got tuple"):
            FGSM()(posterior, (images(), images()), LABELS, 0.1)

    def test_empty_inputs(self):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ValueError, match="nothing to attack"):
            FGSM()(posterior, torch.zeros(0, 4), LABELS[:0], 0.1)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (LABELS[:5], "6 inputs and 5 targets"),
            (nn.functional.one_hot(LABELS), r"targets.argmax\(-1\)"),
            (LABELS.float(), "integer targets"),
            (LABELS + 1, "run from 1 to 3"),
        ],
        ids=["too few", "one-hot", "floats", "unknown class"],
    )
    def test_targets(self, targets: Tensor, message: str):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ValueError, match=message):
            FGSM()(posterior, images(), targets, 0.1)

    @pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0, 0.0), (0.0, math.inf), (math.nan, 1.0)])
    def test_bounds(self, bounds: tuple[float, float]):
        with pytest.raises(ValueError, match="lowest and the highest valid input"):
            FGSM(bounds=bounds)

    def test_counts_and_steps(self):
        with pytest.raises(ValueError, match="num_samples=0: draw at least one"):
            FGSM(num_samples=0)
        with pytest.raises(ValueError, match="steps=0: take at least one"):
            PGD(steps=0)
        with pytest.raises(ValueError, match="relative_step_size=0"):
            PGD(relative_step_size=0.0)

    def test_given_draws_that_should_be_fresh(self):
        posterior, _, _ = linear_ensemble()
        with pytest.raises(ValueError, match="leave out fresh_draws"):
            PGD(fresh_draws=True)(posterior, images(), LABELS, 0.1, samples=posterior.sample(5))

    def test_robustness_of_a_regression(self):
        posterior = bbh.methods.maximum_a_posteriori(nn.Linear(4, 1), bbh.likelihoods.Gaussian())
        with pytest.raises(TypeError, match=r"must be Categorical; it is Gaussian.*bbh.predict"):
            robustness(posterior, images(), LABELS, [0.1])

    def test_robustness_with_one_hot_targets(self):
        posterior, _, _ = linear_ensemble()
        with pytest.raises((TypeError, ValueError)):
            robustness(posterior, images(), nn.functional.one_hot(LABELS), [0.1])
