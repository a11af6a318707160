"""The zkserver: owns topics, partitions and blocks."""
