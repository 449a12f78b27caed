"""The documentation as a site: what MkDocs is told beyond mkdocs.yml, and how the project's Markdown is read."""
