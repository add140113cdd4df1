"""Options about stores as variables of the environment, which programs and daemons set for themselves."""

from __future__ import annotations

from fffs.base.cache_settings import SIZE, SWITCH, cache_name
from fffs.base.sizes import parse_budget
from fffs.errors import UsageError
from fffs.objects.names import check_endpoint


def environment_of(cache: str, cache_size: str | int, endpoint_url: str) -> dict[str, str]:
    """Return the variables that say the same. Empty options say nothing.

    Raises:
        UsageError: an option is wrong.

    """
    variables = {SWITCH: cache_name(cache)} if cache else {}
    if cache_size != "":
        try:
            parse_budget(cache_size)
        except ValueError as error:
            raise UsageError(f"the size of the cache: {error}") from None
        variables[SIZE] = str(cache_size)
    if endpoint_url:
        check_endpoint(endpoint_url, "the endpoint")
        # The second variable would make the first one ineffective.
        variables |= {"AWS_ENDPOINT_URL_S3": endpoint_url, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}
    return variables
