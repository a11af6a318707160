"""Plans of faults, and who carries them out."""
