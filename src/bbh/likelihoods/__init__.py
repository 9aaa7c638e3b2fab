"""Likelihoods: how targets arise from a network's outputs. All work with all methods.

Log probabilities are given for each weight draw and example, [S, B]. If an example has several
outputs, they are independent given the draw and their log probabilities add up. Weights of classes
or examples multiply the log probability: an example with weight 2 counts like two equal examples.
"""

from bbh.likelihoods.base import Likelihood, P, Sums
from bbh.likelihoods.classification import Bernoulli, Categorical
from bbh.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from bbh.likelihoods.regression import Regression
from bbh.standardisation import Standardisation

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "P",
    "Regression",
    "Standardisation",
    "Sums",
]
