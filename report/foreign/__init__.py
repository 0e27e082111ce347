"""Runs on tables of any origin: scored where the test table has labels, told on the terminal and on a page."""
