"""Settings become JSON and come back."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bbh
from bbh import divergences, generators, likelihoods, priors
from bbh.methods import FlowKind
from bbh.per_example import Sampling
from bbh.storage.descriptions import Custom, decode, encode
from storage.small import Categorical, OwnInitialization, OwnPrior, same

positive = st.floats(1e-6, 1e6)
counts = st.integers(1, 50)
widths = st.lists(counts, min_size=1, max_size=3).map(tuple)
elementwise = st.one_of(
    st.builds(priors.Normal, positive, st.floats(-9, 9)),
    st.builds(priors.Laplace, positive),
    st.builds(priors.StudentT, positive, positive),
    st.builds(
        lambda scales: priors.ScaleMixture(scales, (1 / len(scales),) * len(scales)),
        st.lists(positive, min_size=1, max_size=4).map(tuple),
    ),
)
initializations = st.one_of(
    st.builds(generators.Glorot), st.builds(generators.FromNetwork, positive)
)
generator_fields = {"hidden": widths, "slope": positive, "initialization": initializations}
standardisation = st.one_of(
    st.builds(likelihoods.Standardisation, st.just(3.0), positive),
    st.builds(likelihoods.Standardisation, st.just((0.0, 1.5)), st.just((2.0, 0.1))),
)
standardise = st.booleans() | standardisation
values = st.one_of(
    elementwise,
    st.builds(priors.PerLayer, st.dictionaries(st.text(), elementwise, max_size=3), elementwise),
    st.builds(
        Categorical,
        st.none() | st.lists(positive, min_size=1).map(tuple),
        st.none() | st.integers(-100, 255),
        st.sampled_from([-1, 1]),
    ),
    st.builds(
        likelihoods.Bernoulli,
        positive | st.lists(positive, min_size=1).map(tuple),
        st.none() | st.integers(-100, -1),
    ),
    st.builds(likelihoods.Laplace, positive, st.booleans(), standardise),
    st.builds(likelihoods.StudentT, st.none() | positive, st.none() | st.floats(1.1, 99.0)),
    st.builds(likelihoods.Quantile, st.floats(0.01, 0.99), standardise=standardise),
    st.builds(likelihoods.Poisson, st.none() | positive | st.just((1.0, 2.5))),
    st.builds(likelihoods.NegativeBinomial, positive, st.booleans(), base_rate=positive),
    st.builds(likelihoods.NegativeBinomial, from_network=st.just(True)),
    st.builds(likelihoods.Ordinal, st.integers(3, 9), st.none() | st.integers(-100, -1)),
    st.builds(likelihoods.Gaussian, positive, st.booleans(), standardise),
    st.builds(likelihoods.Gaussian, standardise=standardise),
    st.builds(likelihoods.HeteroscedasticGaussian, positive, standardise),
    standardisation,
    st.builds(divergences.ClosedForm),
    st.builds(divergences.NearestNeighbour, st.none() | counts, positive),
    st.builds(divergences.JointNearestNeighbour, st.none() | counts, positive),
    st.builds(divergences.NearestNeighbourEntropy, counts, positive),
    st.builds(divergences.JointEntropy, positive),
    st.builds(divergences.Adversarial, widths, counts, counts, counts, st.none() | counts),
    st.builds(generators.LayerWise, **generator_fields),
    st.builds(generators.Sliced, **generator_fields),
    st.builds(generators.LowRank, st.integers(1, 40), spread=positive),
    st.builds(generators.Directions, spread=positive),
    st.builds(generators.Single, **generator_fields, chunk=st.none() | counts),
    st.builds(priors.FanIn, positive),
    st.builds(bbh.GaussianNoise, counts, st.booleans()),
    st.builds(bbh.AdversarialTraining, positive, st.floats(0, 1)),
    st.sampled_from(FlowKind),
    st.sampled_from(Sampling),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
)
nested = st.recursive(
    values,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=5,
)


def same_nested(first, second):
    if isinstance(first, list | tuple):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(same_nested(a, b) for a, b in zip(first, second, strict=True))
        )
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            same_nested(first[name], second[name]) for name in first
        )
    return same(first, second)


class TestDescriptions:
    # Building a value checks its types, at random in long containers: not the test's doing.
    @pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
    @settings(max_examples=150, deadline=None)
    @given(nested)
    def test_round_trip_through_json(self, value):
        assert same_nested(value, decode(json.loads(json.dumps(encode(value)))))

    def test_every_value_class_is_tried_above(self):
        """A class added to the list of known ones must be added to the test."""
        from bbh.storage import descriptions

        tried = {
            "Normal", "Laplace", "StudentT", "ScaleMixture", "PerLayer", "Categorical",
            "Bernoulli", "Gaussian", "HeteroscedasticGaussian", "ClosedForm", "NearestNeighbour",
            "JointNearestNeighbour", "NearestNeighbourEntropy", "JointEntropy", "Adversarial",
            "LayerWise", "Sliced", "Single", "LowRank", "Directions", "Glorot", "FromNetwork",
            "GaussianNoise", "AdversarialTraining", "Standardisation", "FanIn",
            "LaplaceLikelihood", "StudentTLikelihood", "Quantile", "Poisson", "NegativeBinomial",
            "Ordinal",
            "Centred", "DiagonalNormal",  # below, since their tensors are not JSON
        }  # fmt: skip
        assert set(descriptions._VALUES) == tried
        assert set(descriptions._ENUMS) == {"FlowKind", "Sampling"}

    def test_tensors_are_put_aside(self):
        prior = priors.Centred({"w": torch.randn(3), "b": torch.randn(2)}, priors.Laplace(0.3))
        tensors = {}
        encoded = json.loads(json.dumps(encode(prior, tensors)))
        back = decode(encoded, tensors)
        assert back.prior == prior.prior
        assert list(back.values) == ["w", "b"]
        assert all(torch.equal(back.values[name], prior.values[name]) for name in prior.values)
        with pytest.raises(ValueError, match="is missing"):
            decode(encoded)

        both = ({"w": torch.randn(3)}, {"w": torch.ones(3)})
        tensors = {}
        back = decode(
            json.loads(json.dumps(encode(priors.DiagonalNormal(*both), tensors))), tensors
        )
        assert torch.equal(back.locs["w"], both[0]["w"])
        assert torch.equal(back.scales["w"], both[1]["w"])

    def test_order_of_patterns_survives(self):
        """In PerLayer the first match counts, so {b, a} is not {a, b}."""
        prior = priors.PerLayer({"z*": priors.Laplace(1.0), "*": priors.Normal(2.0)})
        back = decode(json.loads(json.dumps(encode(prior))))
        assert back.of("z.weight") == priors.Laplace(1.0)
        assert list(back.choices) == ["z*", "*"]

    @pytest.mark.parametrize(
        "value",
        [
            OwnPrior(),
            priors.Sampled(lambda n: {}),
            priors.PerLayer({"0.*": OwnPrior()}),
            priors.PerLayer({}, default=OwnPrior()),
            generators.Sliced(initialization=OwnInitialization()),
            [1, (OwnPrior(), 2)],
        ],
        ids=["own", "sampled", "inside a mapping", "as a field", "in a generator", "in a list"],
    )
    def test_own_classes_are_named_wherever_they_are(self, value):
        back = decode(json.loads(json.dumps(encode(value))))
        assert isinstance(back, Custom)
        assert back.name.rpartition(".")[2] in ("OwnPrior", "Sampled", "OwnInitialization")

    def test_own_class_of_a_known_name_is_not_mistaken(self):
        class Normal(priors.Normal):
            pass

        assert isinstance(decode(encode(Normal(2.0))), Custom)

    @pytest.mark.parametrize(
        "encoded",
        [
            {"type": "os.system"},
            {"type": "Unheard"},
            {"type": "Normal", "width": 3.0},
            {"enum": "Sampling", "value": "unheard"},
            {"enum": "Unheard", "value": "weights"},
            {"type": "Normal", "scale": -1.0},
            {},
        ],
    )
    def test_unknown_names_are_refused(self, encoded):
        with pytest.raises(ValueError, match=r".+"):
            decode(encoded)
