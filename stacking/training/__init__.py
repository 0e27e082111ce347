"""From data to a run's folder.

``train`` reads from top to bottom: ``plan`` (what is going to be done), ``budget`` (the time limit), ``fits`` (one
learner on one fold), ``schedule`` (fits side by side).
"""
