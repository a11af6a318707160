"""Records that groups get only at, or only before, a time."""
