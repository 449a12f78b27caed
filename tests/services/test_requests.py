"""What a request's query may say."""

import pytest

from chalicelib.api.routes import Request
from chalicelib.domain.errors import InvalidRequest


@pytest.mark.parametrize("text", ["0", "-1", "101", "abc", "", "1.5", "٣", "9" * 5000])
def test_a_wrong_limit_is_named(text: str) -> None:
    request = Request(names={}, query={"limit": text}, headers={}, body={}, who="ada", request_id="r")
    with pytest.raises(InvalidRequest, match="limit"):
        request.limit()
