"""Large output layers whose gradient stays in factors: the gradients, their Adam, their kernels."""
