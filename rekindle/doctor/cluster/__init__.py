"""Checks of a CreateCluster request and of a live cluster."""
