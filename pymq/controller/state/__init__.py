"""What the active zkserver knows, and how it changes the tree."""
