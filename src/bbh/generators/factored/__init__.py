"""Gradients of large output layers, kept as products of factors, with optimizers and kernels."""
