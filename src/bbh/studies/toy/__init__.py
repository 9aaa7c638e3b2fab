"""The toy regression study."""
