"""The programs being built: which is current, the values that outlive a run, random numbers, the backward pass."""
