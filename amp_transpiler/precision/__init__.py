"""Deciding: from a program and a policy to a precision for every node. Nothing here edits a program."""
