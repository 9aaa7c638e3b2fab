"""The problems of the studies, each with its data, network, rows and measures."""
