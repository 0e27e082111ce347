"""From learners to predictions.

``train`` reads from top to bottom; what it takes, in the order of the data: ``options``, ``config``; ``events``,
``columns``, ``tables``, ``remarks`` (on data); ``sample``, ``folds``; ``layout`` (names in a run's folder), ``folder``
(writes it); ``budget`` (the time limit), ``plan`` (what is going to be done); ``fits`` (one learner on one fold),
``schedule`` (fits side by side); ``second_level`` (pool, temperature, gate); ``estimates`` (what a task makes of
posteriors); ``chain`` (all after the learners). New events: ``run`` (a finished folder) and ``exported`` (ONNX files,
written by ``export``) are both ``predictable``, for ``predict``; ``explain``, ``first_look``.
"""
