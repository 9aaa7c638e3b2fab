"""The optimum against scipy's, and what cannot be calibrated."""

import logging

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import bbh
from bbh.decisions import TemperatureScaling


def drawn(number: int, true_temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and classes drawn from the same ones at another temperature."""
    logits = 3 * torch.randn(number, 6, dtype=torch.float64)
    targets = torch.multinomial((logits / true_temperature).softmax(1), 1).squeeze(1)
    return logits.softmax(1), targets


@pytest.mark.parametrize("true_temperature", [0.4, 1.0, 2.5])
def test_the_optimum_is_that_of_scipy(true_temperature):
    probs, targets = drawn(400, true_temperature)

    def loss(inverse: float) -> float:
        logs = probs.log() * inverse
        return torch.nn.functional.cross_entropy(logs, targets).item()

    known = minimize_scalar(loss, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-10})
    fitted = TemperatureScaling.fit(probs, targets)
    assert fitted.temperature == pytest.approx(1 / known.x, rel=1e-5)
    assert loss(1 / fitted.temperature) <= loss(1.0)
    # With as much data, it is near the temperature that the classes were drawn with.
    assert TemperatureScaling.fit(*drawn(20_000, true_temperature)).temperature == pytest.approx(
        true_temperature, rel=0.05
    )


def test_it_calibrates_without_changing_the_classes():
    probs, targets = drawn(5000, 3.0)
    scaled = TemperatureScaling.fit(probs, targets)(probs)
    assert (scaled.argmax(1) == probs.argmax(1)).all()
    before = bbh.metrics.expected_calibration_error(probs.float(), targets)
    assert bbh.metrics.expected_calibration_error(scaled, targets) < before / 5
    torch.testing.assert_close(TemperatureScaling(1.0)(probs), probs.float())


def test_arrays_zeros_and_strides():
    probs, targets = drawn(300, 2.0)
    wanted = TemperatureScaling.fit(probs, targets).temperature
    array = np.asfortranarray(probs.numpy())
    assert TemperatureScaling.fit(array, targets.numpy()).temperature == wanted
    # Probabilities that were rounded to zero are the smallest of float32, not log 0.
    rounded = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.4, 0.6]])
    fitted = TemperatureScaling.fit(rounded, torch.tensor([0, 1, 1]))
    assert fitted.temperature > 10
    assert fitted(rounded).isfinite().all()


def test_without_errors_there_is_no_optimum(caplog):
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    with caplog.at_level(logging.WARNING, "bbh"):
        assert TemperatureScaling.fit(probs, torch.tensor([0, 1])).temperature == 0.01
        assert TemperatureScaling.fit(probs, torch.tensor([1, 0])).temperature == 100
    assert "Hold out more examples" in caplog.text
    assert "shuffled" in caplog.text


def test_bad_input():
    probs, targets = drawn(10, 1.0)
    with pytest.raises(ValueError, match="does not sum to 1"):
        TemperatureScaling.fit(probs * 0.5, targets)
    with pytest.raises(ValueError, match="one class per row"):
        TemperatureScaling.fit(probs, targets[:5])
    with pytest.raises(ValueError, match="probabilities of yes"):
        TemperatureScaling.fit(probs[:, :1], targets)
    with pytest.raises(ValueError, match="empty"):
        TemperatureScaling.fit(probs[:0], targets[:0])
    with pytest.raises(ValueError, match="NaN"):
        TemperatureScaling.fit(probs * torch.nan, targets)
    with pytest.raises(ValueError, match="positive, finite"):
        TemperatureScaling(0.0)
    with pytest.raises(TypeError):
        TemperatureScaling.fit("probabilities", targets)  # pyright: ignore
