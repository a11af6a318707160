"""What each request and event means for the tree; pure functions over the image."""
