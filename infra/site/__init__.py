"""The documentation site: MkDocs' configuration beyond mkdocs.yml, and the conversion of the project's Markdown."""
