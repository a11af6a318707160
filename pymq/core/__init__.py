"""What pymq is made of: values and machines. Nothing in here knows files, sockets or clocks."""
