"""Reading the world for one observation of an Incident."""
