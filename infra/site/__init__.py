"""The pages of docs/reference, written from the code, and a reader of the project's Markdown."""
