"""Gradient rules, one file a kind of operator. Every file here is loaded by `autodiff.registry`."""
