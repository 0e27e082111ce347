"""From learners to predictions.

``train`` reads from top to bottom; what it takes, in the order of the data: ``options``, ``config``; ``events``,
``columns``, ``tables``, ``remarks`` (on data); ``sample``, ``folds``; ``store`` (the run's folder); ``fits`` (one
learner on one fold), ``schedule`` (fits side by side), ``oof`` (what they predicted); ``second_level`` (pool,
temperature, gate); ``estimates`` (what a task makes of posteriors); ``chain`` (all after the learners). New events:
``predict``, ``explain``; ``export`` writes ONNX files, ``exported`` opens them as a run.
"""
