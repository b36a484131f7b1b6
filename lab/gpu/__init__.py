"""The parts of `bench_gpu.py`, each run in a process of its own."""
