"""Processes, disks and a network in virtual time."""
