"""Benchmarks: they time contenders in turn, and compare with the limit of the hardware."""
