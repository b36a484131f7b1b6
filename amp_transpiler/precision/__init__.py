"""Deciding: lists, regions, constraints and rules, and the assignment that they lead to. Nothing here edits a program."""
