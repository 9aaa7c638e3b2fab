"""What pytest must not import when it looks for examples in docstrings."""

collect_ignore = ["warm.py"]  # it trains
