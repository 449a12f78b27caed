"""Reading the world for one look at an Incident."""
