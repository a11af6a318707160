"""Request and reply over topics."""
