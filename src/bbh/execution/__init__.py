"""Ways to put weight draws through a network: in a loop, with vmap, or on parallel streams."""

from bbh.execution.base import Execution, NetworkFunction, Runnable
from bbh.execution.choice import Automatic, Recorded
from bbh.execution.loop import Loop
from bbh.execution.statistics import DrawStatistics
from bbh.execution.streams import Fork, Streams
from bbh.execution.vmap import Vmap

__all__ = [
    "Automatic",
    "DrawStatistics",
    "Execution",
    "Fork",
    "Loop",
    "NetworkFunction",
    "Recorded",
    "Runnable",
    "Streams",
    "Vmap",
]
