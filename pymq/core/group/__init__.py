"""The group coordinator: members, leases, committed offsets."""
