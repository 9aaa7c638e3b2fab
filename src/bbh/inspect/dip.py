"""Hartigan's dip: the distance of a sample from the nearest distribution with a single mode.

The alternative, comparing mixtures of Gaussians, finds two components in any skewed or heavy-tailed
distribution, and generated weights are often skewed and seldom Gaussian. The dip assumes nothing
about the shape of a mode.
"""

import numpy as np
from jaxtyping import Float

# The smallest gap between values, relative to their range. Equal values are treated as values with
# this gap, so that they need no special case.
_NARROWEST = 1e-13
# Critical values of √n · dip for uniform samples, since of all unimodal distributions the uniform
# is hardest to tell from two modes. They were computed with ``dip_statistic`` from 20,000 samples
# for each size. Tests compare them with the quantiles in Maechler's R package diptest, which come
# from a million samples.
_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
_CRITICAL: dict[int, tuple[float, ...]] = {
    4: (0.25, 0.315, 0.3757, 0.4154, 0.4622, 0.4882),
    5: (0.2713, 0.3602, 0.3958, 0.4175, 0.4394, 0.446),
    7: (0.3122, 0.3617, 0.3798, 0.4207, 0.4886, 0.5323),
    10: (0.3088, 0.3763, 0.4133, 0.4418, 0.507, 0.5733),
    15: (0.3232, 0.3857, 0.4245, 0.4572, 0.5227, 0.5936),
    20: (0.328, 0.3956, 0.4354, 0.4685, 0.5374, 0.6124),
    30: (0.3365, 0.4044, 0.4454, 0.4836, 0.5556, 0.6462),
    50: (0.3457, 0.4161, 0.4591, 0.4972, 0.5704, 0.6648),
    100: (0.355, 0.4273, 0.4724, 0.5112, 0.5911, 0.6956),
    200: (0.3609, 0.4359, 0.4796, 0.52, 0.6035, 0.7065),
    500: (0.368, 0.4433, 0.4896, 0.5289, 0.6135, 0.7349),
    1000: (0.371, 0.447, 0.4946, 0.5346, 0.6179, 0.7109),
    2000: (0.3737, 0.4496, 0.4958, 0.5391, 0.6214, 0.7394),
    5000: (0.3748, 0.4522, 0.4997, 0.5428, 0.6255, 0.7349),
}


def dip_statistic(values: Float[np.ndarray, " n"]) -> float:
    """Largest distance between the sample's distribution function and the nearest unimodal one.

        D = min_{G unimodal} sup_x |F(x) − G(x)|,  from 1/(2n) up to 1/4

    Hartigan & Hartigan (1985), "The dip test of unimodality". G is convex up to the mode and
    concave beyond it: the greatest convex minorant of F on the left, the least concave majorant on
    the right. The algorithm shrinks the modal interval to where the two are farthest apart, until
    their distance inside the interval is no larger than the largest distance from F found outside.

    Examples:
        >>> dip_statistic(np.array([0.0, 1.0, 2.0, 3.0]))
        0.125
        >>> round(dip_statistic(np.array([0.0, 0.0, 1.0, 1.0])), 9)
        0.25
    """
    number = len(values)
    if number == 0 or not np.isfinite(values).all():
        raise ValueError("the dip needs at least one value, and all of them finite.")
    ordered = np.sort(values.astype(np.float64))
    width = ordered[-1] - ordered[0]
    if width == 0:
        return 0.5 / number
    gaps = np.maximum(np.diff(ordered) / width, _NARROWEST)
    low, high = 0, number - 1
    farthest = 1.0  # twice the distance, in steps of F of height 1/n; it is at least half a step
    while True:
        inside = gaps[low:high]
        # Within the interval, F rises from k to k + 1 steps at the k-th value.
        below, low_knots = _convex_minorant(inside)
        above, high_knots = _concave_majorant(inside)
        distance = above - below
        # The distance is concave and piecewise linear, so it is largest at a knot of one of the two
        # functions; the next knot of the other is the other end of the new interval. Only knots are
        # searched, so that rounding cannot select another point where both are parallel.
        knots = np.union1d(low_knots, high_knots)
        widest = knots[distance[knots].argmax()]
        if distance[widest] <= farthest:
            return farthest / (2 * number)
        left = low_knots[np.searchsorted(low_knots, widest, side="right") - 1]
        right = high_knots[np.searchsorted(high_knots, widest)]
        steps = np.arange(len(below))
        outside = [(steps + 1 - below)[: left + 1], (above - steps)[right:]]
        farthest = max(farthest, *(float(one.max()) for one in outside))
        low, high = low + left, low + right


def dip_p_value(statistic: float, number: int) -> float:
    """The probability that a uniform sample of this size has a dip at least as large.

    This is conservative, since other unimodal distributions such as the Gaussian have smaller dips.
    Values come from a table between 0.001 and 0.5: smaller ones are given as 0.001, larger ones
    as 1.

    Args:
        statistic: The sample's dip.
        number: Size of the sample.
    """
    sizes = np.array(list(_CRITICAL))
    table = np.array(list(_CRITICAL.values()))
    # √n · dip converges as n grows, so sizes between two rows of the table are interpolated.
    row = [np.interp(np.log(number), np.log(sizes), column) for column in table.T]
    return 1 - float(np.interp(np.sqrt(number) * statistic, row, _LEVELS, left=0.0))


def _convex_minorant(gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The greatest convex function below the points (x_k, k), and its knots."""
    # Imported only when needed: it would take a fifth of the time of `import bbh`.
    from sklearn.isotonic import isotonic_regression

    # The slopes of the minorant are the isotonic regression of the slopes between the points
    # (Barlow et al., 1972).
    slopes = isotonic_regression(1 / gaps, sample_weight=gaps)
    knots = np.flatnonzero(np.diff(slopes, prepend=-np.inf, append=np.inf))
    places = np.concatenate([[0.0], gaps.cumsum()])
    return np.interp(places, places[knots], knots), knots


def _concave_majorant(gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least concave function above the points (x_k, k + 1): the minorant upside down."""
    turned, knots = _convex_minorant(gaps[::-1])
    return len(gaps) + 1 - turned[::-1], len(gaps) - knots[::-1]
