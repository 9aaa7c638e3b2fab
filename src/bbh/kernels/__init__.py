"""Fast paths. Each has a plain PyTorch twin that computes the same, and tests that compare them."""
