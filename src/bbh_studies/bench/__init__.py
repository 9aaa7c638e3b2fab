"""Benchmarks: contenders side by side in one run, and against the hardware's limit."""
