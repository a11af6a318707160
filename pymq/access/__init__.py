"""Access control: rules, required permissions, quotas and audit."""
