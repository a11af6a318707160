"""Look through a store's folder and say what is wrong with it."""
