"""What all machines that fetch records share."""
