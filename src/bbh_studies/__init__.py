"""Experiments: clients of the library, imported by nothing but the command line.

A command becomes runs and runs become records in ``runner``: ``presets`` hold a ``config`` for
every row of a study's table, ``build`` makes the library's objects of it, ``toy`` and ``images``
train and measure, ``terminal`` shows it meanwhile. ``report`` makes pages of records; it knows
neither posteriors nor data.
"""
