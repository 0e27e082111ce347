"""Tables of any origin: what their columns hold (``columns``), and their rows as events of a run (``data``)."""
