"""The image-classification studies: digits, MNIST and the ablations on it, CIFAR5."""
