"""Completing this broker's copies of sealed blocks."""
