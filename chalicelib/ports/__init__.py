"""What the service needs from the world, as Protocols. Adapters make them real; tests use fakes that keep the contract.

Every method may raise Retryable (Throttled, DependencyUnavailable) and NotAuthorized (domain/model/errors.py) besides
what its docstring names.
"""
