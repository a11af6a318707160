"""The active zkserver's state, and the way it changes the metadata tree."""
