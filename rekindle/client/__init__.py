"""The service's REST API for the command line and the console: requests, answers, errors, tables."""
