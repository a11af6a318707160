"""Timers and clocks of machines; time is always an argument."""
