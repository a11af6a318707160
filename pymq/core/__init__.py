"""Values and machines, without files, sockets or clocks."""
