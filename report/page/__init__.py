"""The HTML report: markup, and the file as a whole."""
