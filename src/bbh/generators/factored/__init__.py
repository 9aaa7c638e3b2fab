"""Gradients of large output layers, kept as products of factors, with an Adam and kernels."""
