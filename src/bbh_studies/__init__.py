"""The paper's experiments and the benchmarks: a user of the library like any other.

``studies`` registers all studies. ``problems`` holds each study's problem, rows and measures,
``settings`` the settings of methods and training, ``datasets`` the data. ``run`` turns a command
into runs and each run into a record; ``terminal`` shows progress and results. ``report`` makes
pages from records, and ``bench`` measures time and memory.
"""
