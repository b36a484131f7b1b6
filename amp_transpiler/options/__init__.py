"""Declares the options of a conversion once, as fields of two records; everything that shows or reads them asks those.

`conversion.py` holds what `transpile` and the command share, `command.py` what only the command has. A new option is a
field there, and its use.
"""
