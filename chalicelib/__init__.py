"""The Rekindle service: what runs in Lambda. Floors are in docs/architecture.md and enforced by import-linter."""
