"""Block stores: where record batches rest."""
