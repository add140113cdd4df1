"""The stores of obstore, made from the environment. Only for the store process: obstore does not survive a fork."""

from __future__ import annotations

import importlib
import os
import socket
import urllib.parse
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from fffs.errors import AccessError, UsageError
from fffs.objects.aws_profile import INDIRECT, is_indirect, profile_name, read_profile
from fffs.objects.names import is_plain_allowed
from fffs.objects.redacting import secrets_of

# A store that does not answer must not hold a request for the three minutes of obstore's default.
_RETRY: Final = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
    "retry_timeout": timedelta(seconds=45),
}
_METADATA: Final = "169.254.169.254"
_NO_CREDENTIALS: Final = (
    "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
    "for a public bucket, AWS_SKIP_SIGNATURE=true"
)


def _library() -> Any:
    """Return obstore's module of stores. Its import needs the extra, which whoever imports this module may lack."""
    return importlib.import_module("obstore.store")


def sign_url(store: Any, key: str, seconds: int) -> str:
    """Return a URL with which an object can be read for some time."""
    url: str = importlib.import_module("obstore").sign(store, "GET", key, timedelta(seconds=seconds))
    return url


def is_true(value: str | None) -> bool:
    """Whether a variable means yes, as obstore reads it."""
    return (value or "").strip().lower() in ("1", "true", "on", "yes", "y")


class StoreSettings:
    """What the environment and the files of the clouds say about stores, and the stores made from it.

    ``secrets`` are values that must not appear in a message. ``ends`` is the time at which the credentials of S3 end,
    or None.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.profile: dict[str, str] = {}
        self.secrets = secrets_of(environment)
        self.ends: datetime | None = _time_of(environment.get("AWS_CREDENTIAL_EXPIRATION"))

    def load_profile(self) -> None:
        """Read the profile of AWS. Raises UsageError."""
        self.profile = read_profile(self._environment)
        self.secrets = secrets_of({**self._environment, **self.profile})

    def is_anonymous(self, scheme: str) -> bool:
        """Whether requests are sent without a signature."""
        prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
        return is_true(self._environment.get(f"{prefix}_SKIP_SIGNATURE"))

    @property
    def has_static_token(self) -> bool:
        """Whether the user gave a session token of S3, whose end is not known."""
        return bool(self._first("AWS_SESSION_TOKEN", "AWS_TOKEN") or "aws_session_token" in self.profile)

    def shared_token(self, scheme: str) -> str:
        """Return the query that gives access to an account of Azure (SAS), or nothing."""
        names = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_SAS_TOKEN")
        keys = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
        return "" if scheme != "az" or self._first(*keys) else self._first(*names).lstrip("?")

    def make(self, scheme: str, bucket: str) -> Any:
        """Return the store of a bucket. Raises UsageError, AccessError, and what obstore raises."""
        if scheme == "gs":
            return _library().GCSStore(bucket, client_options=self._client(""), retry_config=_RETRY)
        if scheme == "az":
            return self._make_azure(bucket)
        self.load_profile()
        return self._make_s3(bucket, {} if self.is_anonymous("s3") else self._keys())

    def plain_url(self, scheme: str, bucket: str, key: str) -> str:
        """Return the URL of an object without a signature, in the style that obstore has for this store."""
        if scheme == "gs":
            return f"https://storage.googleapis.com/{bucket}/{urllib.parse.quote(key, safe='/~')}"
        if scheme == "az":
            store = self._make_azure(bucket, account_key="bm9uZQ==", skip_signature=False)
        else:
            store = self._make_s3(
                bucket, {"access_key_id": "none", "secret_access_key": "none", "skip_signature": False}
            )
        return str(sign_url(store, key, 60)).partition("?")[0]

    def _make_s3(self, bucket: str, keys: dict[str, Any]) -> Any:
        endpoint = self._endpoint()
        settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        region = self._first("AWS_REGION", "AWS_DEFAULT_REGION") or self.profile.get("region")
        settings |= {"region": region} if region else {}
        return _library().S3Store(
            bucket, client_options=self._client(endpoint), retry_config=_RETRY, **settings, **keys
        )

    def _make_azure(self, bucket: str, **settings: Any) -> Any:
        """Return the store of a container. The account is that of the environment."""
        names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING")
        if not self._first(*names, "AZURE_STORAGE_USE_EMULATOR"):
            raise UsageError("set AZURE_STORAGE_ACCOUNT_NAME to the account of the container")
        endpoint = self._first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        return _library().AzureStore(bucket, client_options=self._client(endpoint), retry_config=_RETRY, **settings)

    def _first(self, *names: str) -> str:
        """Return the value of the first variable that is set and not empty, or nothing."""
        return next((value for name in names if (value := self._environment.get(name))), "")

    def _endpoint(self) -> str:
        """Return the endpoint of S3, or nothing for that of AWS."""
        if is_true(self._environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")):
            return ""
        found = self._first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return found or self.profile.get("endpoint_url", "")

    def _client(self, endpoint: str) -> dict[str, Any]:
        """Return the options of the HTTP client. Raises UsageError for an endpoint that is none."""
        options: dict[str, Any] = {"timeout": "30s", "connect_timeout": "5s"}
        if endpoint:
            parts = urllib.parse.urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or " " in endpoint:
                raise UsageError("the endpoint (AWS_ENDPOINT_URL) must be like https://host:port")
            if parts.scheme == "http" and not is_plain_allowed(parts.netloc):
                raise UsageError(f"the endpoint http://{parts.netloc} is not encrypted; AWS_ALLOW_HTTP=true allows it")
            options["allow_http"] = parts.scheme == "http"
        bundle = self._environment.get("AWS_CA_BUNDLE") or self.profile.get("ca_bundle")
        if bundle:
            try:
                with open(bundle, "rb") as file:
                    options["root_certificate"] = file.read()
            except OSError as error:
                raise UsageError(f"AWS_CA_BUNDLE: {bundle}: {error.strerror}") from None
        return options

    def _keys(self) -> dict[str, Any]:
        """Return the keys of S3 for obstore; none where obstore finds them itself."""
        if self._first("AWS_ACCESS_KEY_ID"):
            return {}
        if self._first("AWS_WEB_IDENTITY_TOKEN_FILE"):
            return {}
        if "aws_access_key_id" in self.profile:
            if "aws_secret_access_key" not in self.profile:
                raise AccessError(f"the profile {profile_name(self._environment)!r} has no aws_secret_access_key")
            names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
            names["aws_session_token"] = "session_token"
            return {new: self.profile[old] for old, new in names.items() if old in self.profile}
        if is_indirect(self.profile):
            return {"credential_provider": self._ask_boto3()}
        self._require_role()
        return {}

    def _ask_boto3(self) -> Any:
        """Return a function that gets keys from boto3. Raises UsageError, AccessError."""
        profile = profile_name(self._environment)
        try:
            session = importlib.import_module("boto3.session").Session(profile_name=profile)
        except ImportError:
            what = next(name for name in INDIRECT if name in self.profile)
            raise UsageError(f"the profile {profile!r} has {what}, which needs boto3: pip install boto3") from None
        credentials = session.get_credentials()
        if credentials is None:
            raise AccessError(f"boto3 found no credentials for the profile {profile!r}")

        def provide() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()
            self.secrets = [*{*self.secrets, frozen.secret_key, frozen.token or frozen.secret_key}]
            # boto3 renews keys 15 minutes before their end, so that those which it gives are valid for 10 more.
            ends = datetime.now(timezone.utc) + timedelta(minutes=10) if frozen.token else None
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": ends,
            }

        return provide

    def _require_role(self) -> None:
        """Raise AccessError if there is neither a container role nor a machine role.

        obstore would ask for the latter at an address that exists only in the cloud, for minutes.
        """
        if any(name.startswith(("AWS_CONTAINER_CREDENTIALS_", "AWS_ROLE_ARN")) for name in self._environment):
            return
        if is_true(self._environment.get("AWS_EC2_METADATA_DISABLED")):
            raise AccessError(_NO_CREDENTIALS)
        endpoint = urllib.parse.urlsplit(self._first("AWS_METADATA_ENDPOINT") or f"http://{_METADATA}")
        try:
            socket.create_connection((endpoint.hostname or _METADATA, endpoint.port or 80), timeout=1).close()
        except OSError:
            raise AccessError(_NO_CREDENTIALS) from None


def _time_of(text: str | None) -> datetime | None:
    """Return a time that was written as ISO 8601, or None."""
    try:
        time = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def environment_of_process() -> dict[str, str]:
    """Return the environment, without variables that are empty: those count as not set."""
    return {name: value for name, value in os.environ.items() if value}
