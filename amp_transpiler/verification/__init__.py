"""Verification of a converted program: its structure, inputs to run it on, and its error against the fp32 program."""
