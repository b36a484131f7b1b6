"""What the kernels of a device compute in 16 bits, written in operators that an emulation runs."""
