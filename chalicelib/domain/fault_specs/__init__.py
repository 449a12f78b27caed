"""Every fault class as one row, a file per family. Data: each property of a fault is read from here."""
