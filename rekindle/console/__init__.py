"""The console: a web page on this machine, drawn from the REST API with the operator's own credentials.

`gate` decides who may ask, `server` speaks HTTP on loopback, `site` routes, `pages` and `orders` read and order through
`rekindle.client.api`, `charts` draws. Nothing here speaks to AWS, and nothing is kept but the key of this one session.
"""
