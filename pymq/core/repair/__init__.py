"""Repair: completes this broker's copies of sealed blocks."""
