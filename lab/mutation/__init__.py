"""Mutation testing of the core modules: the mutants, the tests that must see them, and the record of both."""
