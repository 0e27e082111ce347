"""Plug-ins for showerstack."""
