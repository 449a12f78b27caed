"""The console: over HTTP, and in a real Chromium."""
