"""Proving a converted program: its structure, inputs to run it on, and how far its outputs are from the original's."""
