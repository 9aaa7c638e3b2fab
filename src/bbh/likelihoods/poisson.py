"""The likelihood of counts of independent events."""

from dataclasses import dataclass, field

from torch import Tensor

from bbh.likelihoods.counts import Counts, Rates


@dataclass(eq=False, repr=False)
class Poisson(Counts):
    """targets ~ Poisson(base_rate · exp(outputs)): counts of independent events.

    The variance of such counts is their mean. If yours vary more, use ``NegativeBinomial``.

    For counts over different exposures (times, areas, numbers of people) let the network's output
    include the exposure's logarithm, with ``forward=`` and the exposure as a second input:
    ``lambda network, inputs: network(inputs[0]) + inputs[1].log()``. The base rate is then one per
    unit of exposure, ``Poisson(base_rate=counts.sum() / exposures.sum())``.

    Args:
        base_rate: The rate where outputs are 0, for all outputs or one for each on the last axis.
            None learns the mean of the training targets; with 1 the outputs are log rates.
    """

    base_rate: Rates = None
    log_base: Tensor = field(init=False, repr=False)

    def __post_init__(self):
        super().__init__()
        self._register_base()

    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, None]:
        """The log rates alone."""
        return self._log_rates(outputs), None

    def extra_repr(self) -> str:
        """The base rate."""
        return self._base_repr()

    def _constant_dispersion(self, training: Tensor, mean: Tensor) -> None:
        return None
