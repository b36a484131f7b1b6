"""Editing programs: one pass a file, each carrying out what was decided elsewhere."""
