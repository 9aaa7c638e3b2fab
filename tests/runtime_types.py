"""The type checker that tests switch on for the whole library."""

from beartype import BeartypeConf, beartype

# As everywhere in Python's typing, an int will do where a float is asked for.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
