"""From Signals to a fault class: diagnosis and the tables that it reads. Pure."""
