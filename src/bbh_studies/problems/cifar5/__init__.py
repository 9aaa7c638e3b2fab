"""CIFAR5: five classes of CIFAR-10, with residual networks."""
