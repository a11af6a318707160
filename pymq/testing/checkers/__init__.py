"""Rules that a simulated cluster must never break."""
