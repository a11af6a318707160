"""pymq as the broker of other projects' frameworks, one folder each."""
