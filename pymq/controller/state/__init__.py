"""The active zkserver's state, and how it changes the metadata tree."""
