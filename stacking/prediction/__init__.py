"""New events.

``run`` (a finished folder) is ``predictable``, as an export is, for ``predict``; ``computed`` are features in memory.
``explain`` says why a class was preferred; ``first_look`` predicts by weights that the package brings.
"""
