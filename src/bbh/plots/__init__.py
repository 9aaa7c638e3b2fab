"""Figures of predictions, one call each: ``bbh.plots.reliability(predictive, targets)``.

They are the figures of our own reports. Each returns a Matplotlib figure, to be saved with
``figure.savefig``, or draws into axes that you give. Matplotlib comes with the extra ``plots``:
``pip install 'bayes-by-hypernet[plots]'``.
"""

from bbh.plots.classification import entropy_curves, entropy_histogram, reliability, risk_coverage
from bbh.plots.examples import examples
from bbh.plots.regression import bands, functions

__all__ = [
    "bands",
    "entropy_curves",
    "entropy_histogram",
    "examples",
    "functions",
    "reliability",
    "risk_coverage",
]
