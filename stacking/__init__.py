"""From learners to predictions.

Here is what all parts share, in the order of the data: ``options``, ``config``; ``events``, ``remarks`` (on data);
``sample``, ``folds``; ``layout`` (names in a run's folder), ``stated`` (its manifest), ``folder`` (writes it);
``second_level`` (pool, temperature, gate); ``estimates`` (what a task makes of posteriors); ``chain`` (all after the
learners), ``answers``. ``training`` makes a run, ``prediction`` uses it, ``tables`` are events without grids, and
``export`` writes fits as ONNX.
"""
