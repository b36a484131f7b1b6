"""Plants faults of 16-bit arithmetic into real models, with the truth beside each: the test bed of a debugger.

`lab/plant_faults.py` is the program. A fault is a row of `kinds.KINDS`; `planting.py` draws models and places, and
proves that a fault bites in 16 bits and does not without the plant.
"""
