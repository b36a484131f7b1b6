"""Exact rescaling: powers of two move through a program so that its values fit a low format, and no result changes."""
