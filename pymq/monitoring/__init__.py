"""What a process can tell about its nodes."""
