"""The cluster's metadata: its nodes, the options of topics, requests to a coordinator backend."""
