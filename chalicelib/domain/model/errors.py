"""Every error the service raises on purpose, split by what the caller must do.

    RecoveryError
    ├── Retryable              try again later: the platform retries, then the DLQ
    │   ├── Throttled          AWS asked to slow down
    │   ├── DependencyUnavailable   AWS or a network between us failed, or we cannot tell
    │   ├── CapacityUnavailable     the platform has no room now; back off in the workflow
    │   └── VersionConflict    a fenced write lost; re-read and decide again
    ├── Permanent              trying again cannot help: log, count, quarantine, acknowledge
    │   ├── MalformedEvent     a payload whose field is missing or wrong; names the field
    │   ├── MalformedRecord    a stored record whose field is missing, wrong or not known; names the field
    │   ├── InvalidPolicy      a policy document that fails validation; names the field
    │   ├── InvalidRequest     an API body that fails validation; names the field
    │   ├── InvalidSettings    a settings document that fails validation; names the field
    │   ├── Outdated           an order about a version that is not the present one any more
    │   ├── UnknownEntity      the named job, incident or attempt does not exist
    │   ├── InvalidTransition  a phase change the TRANSITIONS table does not hold
    │   ├── NameTaken          a platform name exists and is not ours
    │   └── NotAuthorized      AWS refused; a person must fix permissions
    └── Skip                   nothing to do and nothing wrong: note it, acknowledge
        ├── NotOurs            about a job or cluster that is not protected
        ├── AlreadyDone        the wanted state is already there
        └── Noise              scaling chatter, Info events, connection tests

Errors that a service must catch live here and never in an adapter, so that services need not import adapters.
"""

from __future__ import annotations


class RecoveryError(Exception):
    """Root of all errors raised on purpose."""


class Retryable(RecoveryError):
    """The same call may work later."""


class Throttled(Retryable):
    """AWS asked us to slow down."""


class DependencyUnavailable(Retryable):
    """AWS, or the way to it, failed; whether the call took effect is not known."""


class CapacityUnavailable(Retryable):
    """The platform has no capacity or quota for the request now."""


class VersionConflict(Retryable):
    """A fenced write lost against a newer version of the item."""


class Permanent(RecoveryError):
    """Trying the same again cannot help."""


class _FieldError(Permanent):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class MalformedEvent(_FieldError):
    """A payload cannot be read. `field` is the dotted path that was missing or wrong."""


class MalformedRecord(_FieldError, ValueError):
    """A stored record cannot be read. `field` is the dotted path, empty for the record itself."""


class InvalidPolicy(_FieldError):
    """A policy document is wrong. `field` is the dotted path."""


class InvalidRequest(_FieldError):
    """A request body or parameter is wrong. `field` is the dotted path."""


class InvalidSettings(_FieldError):
    """A settings document (channels, sources of alerts) is wrong. `field` is the dotted path."""


class Outdated(Permanent):
    """What was to be changed has changed since it was read: read it again. `present` is its version now."""

    def __init__(self, message: str, *, present: int) -> None:
        super().__init__(message)
        self.present = present


class UnknownEntity(Permanent):
    """The named job, incident, attempt or policy does not exist."""


class InvalidTransition(Permanent):
    """The TRANSITIONS table does not hold this change of phase."""


class NameTaken(Permanent):
    """A platform name is in use by something that is not ours."""


class NotAuthorized(Permanent):
    """AWS refused the call for lack of permission."""


class Skip(RecoveryError):
    """Nothing to do, and nothing wrong. `reason` is a short, stable word group for metrics and replay."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotOurs(Skip):
    """About a job, cluster or node that is not protected."""


class AlreadyDone(Skip):
    """The wanted state is already there."""


class Noise(Skip):
    """Chatter that carries no fault: scaling, Info events, connection tests."""
