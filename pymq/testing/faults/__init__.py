"""Plans of faults, and the code that carries them out."""
