"""The Rekindle service: what runs in Lambda. Floors are in docs/architecture.md and enforced by import-linter."""

from chalicelib import records

records.use()  # before the first record is made; does nothing outside of a packed bundle
