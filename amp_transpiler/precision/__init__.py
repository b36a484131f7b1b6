"""Deciding: lists, regions, constraints and rules, and the assignment they lead to. Nothing here edits a program."""
