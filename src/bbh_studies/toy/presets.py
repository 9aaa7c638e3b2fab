"""Settings of the toy study, with the reasons for them."""

import math
from dataclasses import replace

from bbh_studies.config import Config

# One proper posterior for all: β rises to 1, N(0, 1) weights, trained to convergence.
_CONVERGED = Config(
    epochs=100,
    batch_size=20,
    learning_rate=0.02,
    cosine_decay=True,
    anneal_end=30,
    steps_per_epoch=20,
    prediction_samples=1000,
)
CORRECTED = {
    "map": replace(_CONVERGED, method="map", steps_per_epoch=10),
    # Without adversarial inputs: they belong to no model, and cost ten members' loops.
    "ensemble": replace(_CONVERGED, method="ensemble", steps_per_epoch=10),
    "bbb": replace(_CONVERGED, method="bbb", num_samples=10, initial_scale=0.1),
    "dropout": replace(_CONVERGED, method="dropout", dropout_rate=0.1),
    # The limit of 0.5 on its scales stays: without it MNF is further from the reference.
    "mnf": replace(
        _CONVERGED, method="mnf", learning_rate=0.01, initial_scale=0.1, steps_per_epoch=15
    ),
    # One z for all tensors, since the layers' weights depend on each other given the data: with
    # independent ones it is hardly closer to the reference than MAP. Few dimensions: with eight
    # or more the functions fit the data less well. With 10 draws a step instead of 30 they
    # contract when trained for longer, away from the reference.
    "bbh": replace(
        _CONVERGED,
        method="bbh",
        learning_rate=0.005,
        divergence="entropy",
        num_samples=30,
        hidden=(16, 32, 64),
        noise_dim=4,
        noise_shared=True,
        steps_per_epoch=40,
    ),
    "nuts": replace(_CONVERGED, method="nuts"),
}
# As the authors' notebook of the published figure runs: forty steps, whose first four know a KL
# (twenty times too heavy) and whose rest is maximum likelihood. Its estimator for hypernetworks
# holds no repulsion between draws, a mistake mended a year later; the mended one stands here.
_FORTY_STEPS = Config(
    epochs=40,
    batch_size=20,
    learning_rate=0.1,
    falling_beta=True,
    prediction_samples=1000,
)
LEGACY = {
    # A temperature of zero leaves the prior out.
    "map": replace(_FORTY_STEPS, method="map", temperature=0.0),
    "ensemble": replace(_FORTY_STEPS, method="ensemble", temperature=0.0, adversarial_epsilon=0.01),
    "bbb": replace(_FORTY_STEPS, method="bbb", initial_scale=math.exp(-1.5)),
    "dropout": replace(_FORTY_STEPS, method="dropout", temperature=0.0),
    "mnf": replace(_FORTY_STEPS, method="mnf"),
    "bbh": replace(
        _FORTY_STEPS,
        method="bbh",
        learning_rate=0.02,
        num_samples=5,
        likelihood_samples=1,
        divergence="nearest_neighbour",
        hidden=(16, 32, 64),
        spread=0.0,
        noise_shared=True,
    ),
    "nuts": replace(_FORTY_STEPS, method="nuts"),
}
