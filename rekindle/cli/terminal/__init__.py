"""What commands share on a terminal: output, confirmation, names, refreshing, completion."""
