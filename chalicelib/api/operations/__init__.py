"""The operations of the REST API, by subject: request models, handlers, rows, and the schemas of their answers."""
