"""Holds the program that another interpreter runs. Nothing else may lie here: this folder comes first in its path."""
