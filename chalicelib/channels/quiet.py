"""Libraries that write secrets into the log, kept from it whatever level the log itself has.

botocore writes whole answers at debug level, Parameter Store's decrypted values among them; urllib3 whole addresses, in
which several services carry their token (at debug level, and as a warning where an answer's headers are broken);
Apprise names the account and key that it does not like in its warnings. Each says what matters in another way, too: by
an exception, or by the answer that ours is made of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

# Sources: botocore.parsers, botocore.endpoint; urllib3.connectionpool, _make_request; apprise.plugins, each `logger`.
LEVELS: Final[Mapping[str, int]] = {
    "boto3": logging.INFO,
    "botocore": logging.INFO,
    "urllib3": logging.ERROR,
    "apprise": logging.CRITICAL + 1,
    "slack_sdk": logging.INFO,
}


def quieten() -> None:
    """Set them. A level that is stricter already stays."""
    for name, level in LEVELS.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(level, logger.level))
