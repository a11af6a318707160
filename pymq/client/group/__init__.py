"""The machine behind a consumer of a group."""
