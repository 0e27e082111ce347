"""From learners to predictions.

``train`` reads from top to bottom; what it takes, in the order of the data: ``options``, ``config``; ``events``,
``columns``, ``tables``; ``sample``, ``folds``; ``fits`` (one learner on one fold), ``job`` (folds and tasks of a run),
``schedule`` (tasks side by side); ``oof`` (predictions of the fits); ``pools``, ``calibration``, ``gate``; ``targets``,
``answers`` (what a task makes of posteriors); ``chain`` (all after the learners); ``run`` (the folder), ``manifest``.
New events: ``predict``, ``measured``, ``explain``; ``export`` writes ONNX files, ``exported`` predicts with them.
"""
