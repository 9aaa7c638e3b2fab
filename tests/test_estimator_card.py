"""The estimator card: targets with a known KL, and what ``bbh bench estimators`` writes."""

import math

import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm, uniform
from typer.testing import CliRunner

from bbh.divergences import NearestNeighbourEntropy
from bbh_studies.bench.document_tables import estimator_table
from bbh_studies.bench.estimators import ESTIMATORS, CardSizes, Estimator, measure
from bbh_studies.bench.targets import TARGETS
from bbh_studies.cli import app
from bbh_studies.record import FILE_NAME, Record


def modes(scale, *locs):
    return lambda x: sum(norm.pdf(x, loc, scale) for loc in locs) / len(locs)


# Target → its density by another library, and where the density is not negligible.
DENSITIES = {
    "prior": (norm.pdf, [(-9, 9)]),
    "narrow": (norm(0, 0.1).pdf, [(-1, 1)]),
    "far": (norm(3, 0.1).pdf, [(2, 4)]),
    "wide": (norm(0, 5).pdf, [(-50, 50)]),
    "uniform": (uniform(-0.5, 1).pdf, [(-0.5, 0.5)]),
    "laplace": (laplace(0, 0.3).pdf, [(-10, 0), (0, 10)]),
    "two_modes": (modes(0.1, -0.5, 0.5), [(-2, 0), (0, 2)]),
    "two_wide_modes": (modes(0.3, -1, 1), [(-4, 0), (0, 4)]),
    "two_sharp_modes": (modes(0.01, -1, 1), [(-1.1, -0.9), (0.9, 1.1)]),
    "three_modes": (modes(0.1, -1, 0, 1), [(-2, -0.5), (-0.5, 0.5), (0.5, 2)]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_kls_are_those_of_a_quadrature(name: str):
    density, parts = DENSITIES[name]

    def integrand(x: float) -> float:
        q = density(x)
        return q * (math.log(q) - norm.logpdf(x)) if q > 0 else 0.0

    expected = sum(quad(integrand, *part, limit=200)[0] for part in parts)
    assert TARGETS[name].kl == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", TARGETS)
def test_draws_come_from_the_distribution_of_the_kl(name: str):
    density, parts = DENSITIES[name]
    draws = TARGETS[name].draws(10, 20_000)
    assert draws.shape == (10, 20_000)
    for power in (1, 2):
        moment = sum(quad(lambda x: density(x) * x**power, *part)[0] for part in parts)  # noqa: B023
        error = draws.pow(power).std().item() / math.sqrt(draws.numel())
        assert draws.pow(power).mean().item() == pytest.approx(moment, abs=5 * error)


def test_noise_is_that_of_one_weight():
    # The estimate for one weight of two draws, over and over, by its formula.
    target = TARGETS["narrow"]
    estimator = Estimator("", NearestNeighbourEntropy(1, floor=1e-8), 2)
    found = measure(estimator, target, CardSizes(vectors=400, vector=50))
    left, right = target.draws(2, 200_000)
    prior_term = (left**2 + right**2) / 4
    expected = prior_term - (left - right).abs().clamp_min(1e-8).log()
    assert found["spread"] == pytest.approx(expected.std().item(), rel=0.15)
    # d/d log s of the mean of x²/2 and of −log ν: mean of x², minus one.
    assert found["scale_gradient"] == pytest.approx((2 * prior_term).std().item(), rel=0.06)
    constant = 0.5 * math.log(2 * math.pi) - 1 - math.log(2)
    assert found["bias"] == pytest.approx(expected.mean().item() + constant - target.kl, abs=0.03)


def test_the_command_writes_records_and_tables(tmp_path):
    words = ["bench", "estimators", "--quick", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"Records: {tmp_path / 'estimators'}" in result.output.replace("\n", "")
    paths = (tmp_path / "estimators").rglob(FILE_NAME)
    records = {record.variant: record for record in map(Record.read, paths)}
    assert set(records) == set(ESTIMATORS)
    assert records["entropy-10"].config["failures"] == {}
    assert records["entropy-10"].config["load_before"] >= 0
    # The closed form is exact, for Gaussians only.
    exact = records["closed-form"].metrics
    for name in ("prior", "narrow", "far", "wide"):
        assert exact[f"{name}_bias"] == pytest.approx(0, abs=1e-5)
        assert exact[f"{name}_spread"] == pytest.approx(0, abs=1e-5)
        assert exact[f"{name}_scale_gradient"] == pytest.approx(0, abs=1e-5)
    assert "two_modes_bias" not in exact
    for part in ("bias", "noise"):
        table = estimator_table(list(records.values()), part)
        assert table in result.output
        rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
        assert rows[part == "bias" :] == [one.title for one in ESTIMATORS.values()]
    assert estimator_table([], "bias") == ""
