"""Inspects a user's network: which parameters are Bayesian, its layers, and how to call it."""

from bbh.network.layers import describe_modules, statistics_layers, width
from bbh.network.selection import (
    Divided,
    Selection,
    divide,
    fan_in,
    select_bayesian,
    trainable_parameters,
)
from bbh.network.support import check_supported
from bbh.network.template import (
    Call,
    Forward,
    call_network,
    padding_rows,
    partly_shared_copy,
    template,
    with_trainable,
)

__all__ = [
    "Call",
    "Divided",
    "Forward",
    "Selection",
    "call_network",
    "check_supported",
    "describe_modules",
    "divide",
    "fan_in",
    "padding_rows",
    "partly_shared_copy",
    "select_bayesian",
    "statistics_layers",
    "template",
    "trainable_parameters",
    "width",
    "with_trainable",
]
