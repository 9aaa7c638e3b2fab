"""The paper's experiments and the benchmarks: a user of the library like any other.

``studies`` registers all studies. A study's problem, rows and measures lie in ``problems``, the
settings of methods and training in ``settings``. ``run`` makes runs of a command and records of
runs, and ``terminal`` shows it meanwhile. ``report`` makes pages of records; ``bench`` measures
time and memory.
"""
