"""Likelihoods: how targets arise from a network's outputs. All work with all methods.

Log probabilities are given for each weight draw and example, [S, B]. If an example has several
outputs, they are independent given the draw and their log probabilities add up. Weights of classes,
examples or single targets multiply the log probability: an example with weight 2 counts like two
equal examples, and what has weight 0 is left out.
"""

from bbh.likelihoods.base import Likelihood, P, Sums
from bbh.likelihoods.bernoulli import Bernoulli
from bbh.likelihoods.classification import Categorical
from bbh.likelihoods.counts import Counts
from bbh.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bbh.likelihoods.negative_binomial import NegativeBinomial
from bbh.likelihoods.ordinal import Ordinal
from bbh.likelihoods.poisson import Poisson
from bbh.likelihoods.quantile import Quantile
from bbh.likelihoods.regression import Regression
from bbh.likelihoods.robust import Laplace, StudentT
from bbh.standardisation import Standardisation

__all__ = [
    "Bernoulli",
    "Categorical",
    "Counts",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Laplace",
    "Likelihood",
    "NegativeBinomial",
    "Ordinal",
    "P",
    "Poisson",
    "Quantile",
    "Regression",
    "Standardisation",
    "StudentT",
    "Sums",
]
