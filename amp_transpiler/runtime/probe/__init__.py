"""The truths of a device's kernels: small graphs, run there, and the arithmetic that gives the same bits.

A `Question` is a graph of one operator, or of a pattern that ONNX Runtime fuses, with inputs and candidates: formulas
of what a kernel may compute. `answer` runs it and says which candidates agree with the device, and how far the others
are. `measure` asks all of `catalogue.questions()`.
"""
