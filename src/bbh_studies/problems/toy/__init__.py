"""The toy problem: regression of a cubic, where the exact posterior is known."""
