"""Assemblies: broker and zkserver machines, and the loop that drives them."""
