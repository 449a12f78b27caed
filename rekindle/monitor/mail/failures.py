"""How a failure of the mailbox is reported."""

from __future__ import annotations

from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.mail.boxes import Box


def mailbox_failed(trouble: Trouble, box: Box, doing: str, err: Exception) -> None:
    """AWS's failures by their own codes, a directory's once for each kind of error."""
    if box.is_directory:
        trouble.once(f"mailbox.{type(err).__name__}", "The mailbox failed in %s (%r); training continues", doing, err)
    else:
        trouble.aws(doing, err)
