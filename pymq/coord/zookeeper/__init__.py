"""The coordinator backend in ZooKeeper."""
