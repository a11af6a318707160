"""Benchmarks: pymq beside its peers, in one run; ``python -m benchmarks`` or ``make bench``."""
