"""Ways to put weight draws through a network."""

from bbh.execution.executor import Execution, Executor, Loop, Streams, Vmap

__all__ = ["Execution", "Executor", "Loop", "Streams", "Vmap"]
