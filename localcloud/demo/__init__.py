"""`rekindle demo`: a real run is killed, frozen and poisoned on the embedded cloud, and comes back."""
