"""Topics whose values have a type: handles, consumers, and the registry of their schemas."""
