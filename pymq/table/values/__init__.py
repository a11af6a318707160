"""Values of records as typed columns."""
