"""The settings of a run, in groups that know how to build what they describe."""
