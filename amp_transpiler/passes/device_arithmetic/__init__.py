"""A device's kernels written as the steps that they compute in 16 bits, in operators that an emulation runs."""
