"""What holds for every attack: bounds, memory, sweeps over sizes, errors."""

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
    closed_form_gradient,
    images,
    linear_ensemble,
    over_attacks,
    over_norms,
)
from bbh.attacks import (
    FGSM,
    PGD,
    Attack,
    LegacyFGSM,
    Norm,
    robustness,
)
from bbh.attacks.loss import AveragedLoss
from scenarios import SmallLeNet, mlp, printed_number


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
    @pytest.mark.slow
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

    @pytest.mark.slow
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
