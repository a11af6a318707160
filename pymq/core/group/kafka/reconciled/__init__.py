"""Groups whose coordinator assigns, and whose members reconcile (KIP-848)."""
