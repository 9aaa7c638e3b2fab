"""CIFAR-10 with the network whose posterior was sampled by Hamiltonian Monte Carlo."""
