"""Changes of the tree for each request and event; pure functions over the image."""
