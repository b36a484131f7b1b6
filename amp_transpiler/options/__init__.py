"""Declares the options of a conversion once, as fields of two records; everything that shows or reads them asks those.

`deciding.py` and `conversion.py` hold what `transpile` and the command share: what chooses precisions, and the rest.
`command.py` holds what only the command has. A new option is a field there, and its use.
"""
