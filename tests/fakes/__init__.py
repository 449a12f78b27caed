"""In-memory ports. The contract suite in tests/adapters runs over these and over the real adapters alike."""
