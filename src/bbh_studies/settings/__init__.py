"""The settings of a run, in groups; each group can build what it describes."""
