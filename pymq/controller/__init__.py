"""The zkserver: owns the metadata of topics, partitions and blocks."""
