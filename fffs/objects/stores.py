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
from fffs.objects.aws_profile import INDIRECT, certificates_file, is_indirect, profile_name, read_profile
from fffs.objects.azure_sas import sas_query
from fffs.objects.google_files import has_default_credentials
from fffs.objects.names import check_endpoint, is_plain_allowed, is_true
from fffs.objects.redacting import secrets_of
from fffs.objects.sigv4 import Keys

# A store that does not answer must not hold a request for the three minutes of obstore's default.
_RETRY: Final = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
    "retry_timeout": timedelta(seconds=45),
}
_TIMEOUT: Final = "30s"  # of a request with few bytes
_EMULATOR: Final = "http://127.0.0.1:10000"
_METADATA_ENDPOINTS: Final = ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_METADATA_ENDPOINT")
_CONTAINER: Final = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_CONTAINER_TOKEN: Final = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
_METADATA: Final = "169.254.169.254"
_GOOGLE: Final = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
_AZURE_KEYS: Final = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_AZURE_TOKENS: Final = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_SAS_TOKEN")
# With one of these, or the beginning of one, obstore does not ask the machine for credentials.
_AZURE: Final = (
    *("AZURE_CLIENT_", "AZURE_STORAGE_CLIENT_", "AZURE_STORAGE_TOKEN", "AZURE_FEDERATED_", "AZURE_USE_AZURE_CLI"),
    *("AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT", "AZURE_MSI_"),
    *(*_AZURE_KEYS, *_AZURE_TOKENS),
)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def _library() -> Any:
    """Return obstore's module of stores. Its import needs the extra, which whoever imports this module may lack."""
    return importlib.import_module("obstore.store")


def sign_url(store: Any, key: str, seconds: int) -> str:
    """Return a URL with which an object can be read for some time."""
    url: str = importlib.import_module("obstore").sign(store, "GET", key, timedelta(seconds=seconds))
    return url


class StoreSettings:
    """What the environment and the files of the clouds say about stores, and the stores made from it.

    ``secrets`` are values that must not appear in a message. ``ends`` is the time at which the credentials of S3 end,
    or None.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.profile: dict[str, str] = {}
        self._plain: dict[tuple[str, str], Any] = {}  # stores with keys that are none
        self._s3: dict[str, Any] | None = None  # what _keys returned for the last store
        self.secrets = secrets_of(environment)
        self.ends: datetime | None = time_of(environment.get("AWS_CREDENTIAL_EXPIRATION"))

    def load_profile(self) -> None:
        """Read the profile of AWS. Raises UsageError."""
        self.profile = read_profile(self._environment)
        self.secrets = [*self.secrets, *secrets_of(self.profile)]
        if "AWS_ACCESS_KEY_ID" not in self._environment:
            times = (self.profile.get(name) for name in ("x_security_token_expires", "aws_expiration"))
            self.ends = next((end for end in map(time_of, times) if end), None)

    def is_anonymous(self, scheme: str) -> bool:
        """Whether requests are sent without a signature."""
        prefix = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}[scheme]
        return is_true(self._environment.get(f"{prefix}_SKIP_SIGNATURE"))

    @property
    def has_static_token(self) -> bool:
        """Whether the user gave a session token of S3, whose end is not known."""
        return bool(self._first("AWS_SESSION_TOKEN", "AWS_TOKEN") or "aws_session_token" in self.profile)

    def azure_query(self, container: str, key: str, seconds: int) -> str:
        """Return the query that gives access to an object of Azure; nothing if obstore has to ask for one.

        Raises UsageError.
        """
        secret = self._first(*_AZURE_KEYS)
        if secret:
            now = datetime.now(timezone.utc)
            # Clocks differ. A query that begins earlier is not valid for longer.
            times = (f"{now + timedelta(seconds=s):%Y-%m-%dT%H:%M:%SZ}" for s in (-300, seconds))
            return sas_query(self._azure_account(), secret, container, key, *times)
        return self._first(*_AZURE_TOKENS).lstrip("?")

    def _azure_account(self) -> str:
        """Return the account of the environment. Raises UsageError."""
        account = self._first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME")
        if not account and is_true(self._first("AZURE_STORAGE_USE_EMULATOR")):
            account = "devstoreaccount1"
        if not account:
            raise UsageError("set AZURE_STORAGE_ACCOUNT_NAME to the account of the container")
        return account

    def make(self, scheme: str, bucket: str, timeout: str = _TIMEOUT) -> Any:
        """Return the store of a bucket. timeout: for each request, as obstore wants it.

        Raises UsageError, AccessError, and what obstore raises.
        """
        if scheme == "gs":
            if not (has_default_credentials() or self.is_anonymous("gs") or self._first(*_GOOGLE)):
                self._require_role()
            return _library().GCSStore(bucket, client_options=self._client("", timeout), retry_config=_RETRY)
        if scheme == "az":
            self._azure_account()  # before a role is looked for, which does not help without it
            if not (self.is_anonymous("az") or any(name.startswith(_AZURE) for name in self._environment)):
                self._require_role()
            return self._make_azure(bucket, timeout)
        self.load_profile()
        self._s3 = {} if self.is_anonymous("s3") else self._keys()
        return self._make_s3(bucket, self._s3, timeout)

    def s3_keys(self) -> Keys | None:
        """Return the keys of S3; None if only obstore can get them, as those of a role. Raises UsageError, AccessError.

        ``make`` must have been called.
        """
        region = self._first("AWS_REGION", "AWS_DEFAULT_REGION") or self.profile.get("region") or "us-east-1"
        if self._first("AWS_ACCESS_KEY_ID"):
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            found = [*map(self._first, names), self._first("AWS_SESSION_TOKEN", "AWS_TOKEN")]
            return Keys(found[0], found[1], found[2], region)
        keys = self._s3 or {}
        if provide := keys.get("credential_provider"):
            keys = provide()
            return Keys(keys["access_key_id"], keys["secret_access_key"], keys["token"] or "", region)
        if "access_key_id" in keys:
            return Keys(keys["access_key_id"], keys["secret_access_key"], keys.get("session_token", ""), region)
        return None

    def plain_url(self, scheme: str, bucket: str, key: str) -> str:
        """Return the URL of an object without a signature, in the style that obstore has for this store."""
        if scheme == "gs":
            return f"https://storage.googleapis.com/{bucket}/{urllib.parse.quote(key, safe='/~')}"
        store = self._plain.get((scheme, bucket))
        if store is None:
            no_keys = {"access_key_id": "none", "secret_access_key": "none", "skip_signature": False}
            if scheme == "az":
                store = self._make_azure(bucket, _TIMEOUT, account_key="bm9uZQ==", skip_signature=False)
            else:
                store = self._make_s3(bucket, no_keys, _TIMEOUT)
            self._plain[scheme, bucket] = store
        return sign_url(store, key, 60).partition("?")[0]

    def _make_s3(self, bucket: str, keys: dict[str, Any], timeout: str) -> Any:
        endpoint = self._endpoint(bucket)
        settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        region = self._first("AWS_REGION", "AWS_DEFAULT_REGION") or self.profile.get("region")
        settings |= {"region": region} if region else {}
        metadata = self._first(*_METADATA_ENDPOINTS)
        settings |= {"metadata_endpoint": metadata} if metadata else {}
        client = self._client(endpoint, timeout)
        return _library().S3Store(bucket, client_options=client, retry_config=_RETRY, **settings, **keys)

    def _make_azure(self, bucket: str, timeout: str, **settings: Any) -> Any:
        """Return the store of a container. The account is that of the environment."""
        self._azure_account()
        emulator = _EMULATOR if is_true(self._first("AZURE_STORAGE_USE_EMULATOR")) else ""
        endpoint = self._first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT") or emulator
        client = self._client(endpoint, timeout)
        return _library().AzureStore(bucket, client_options=client, retry_config=_RETRY, **settings)

    def _first(self, *names: str) -> str:
        """Return the value of the first variable that is set and not empty, or nothing."""
        return next((value for name in names if (value := self._environment.get(name))), "")

    def _endpoint(self, bucket: str) -> str:
        """Return the endpoint of S3, or nothing for that of AWS.

        obstore takes it for that of the bucket if the bucket is to be part of the host, and a slash at its end for a
        part of the key.
        """
        if is_true(self._environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")):
            return ""
        endpoint = (self._first(*_ENDPOINTS) or self.profile.get("endpoint_url", "")).rstrip("/")
        scheme, mark, rest = endpoint.partition("://")
        in_host = is_true(self._environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST"))
        if not in_host or not rest or rest.lower().startswith(f"{bucket.lower()}."):
            return endpoint
        return f"{scheme}{mark}{bucket}.{rest}"

    def _client(self, endpoint: str, timeout: str) -> dict[str, Any]:
        """Return the options of the HTTP client. Raises UsageError for an endpoint that is none."""
        options: dict[str, Any] = {"timeout": timeout, "connect_timeout": "5s"}
        options["allow_http"] = is_plain_allowed("")
        if endpoint:
            check_endpoint(endpoint, "the endpoint (AWS_ENDPOINT_URL)")
            options["allow_http"] = True
        bundle = certificates_file(self._environment)
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
            if not self._first("AWS_SECRET_ACCESS_KEY"):
                raise AccessError("AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not")
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
            what = next(name for name in INDIRECT if name in self.profile)
            why = f"the profile {profile_name(self._environment)!r} has {what}"
            return {"credential_provider": self._ask_boto3(why)}
        if self._first(_CONTAINER) and not self._first(_CONTAINER_TOKEN):  # obstore wants both
            return {"credential_provider": self._ask_boto3(f"the environment has {_CONTAINER}")}
        if not self._first(_CONTAINER, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
            if is_true(self._environment.get("AWS_EC2_METADATA_DISABLED")):
                raise AccessError("no credentials were found")
            self._require_role(self._first(*_METADATA_ENDPOINTS))
        return {}

    def _ask_boto3(self, why: str) -> Any:
        """Return a function that gets keys from boto3. Raises UsageError, AccessError."""
        try:
            session = importlib.import_module("boto3.session")
        except ImportError:
            raise UsageError(f"{why}, which needs boto3: pip install boto3") from None
        credentials = session.Session().get_credentials()  # it reads the same environment
        if credentials is None:
            raise AccessError(f"{why}, with which boto3 found no credentials")

        def provide() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()
            self.secrets = [*{*self.secrets, frozen.secret_key, frozen.token or frozen.secret_key}]  # each only once
            # boto3 renews keys 15 minutes before their end, so that those which it gives are valid for 10 more.
            ends = datetime.now(timezone.utc) + timedelta(minutes=10) if frozen.token else None
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": ends,
            }

        return provide

    def _require_role(self, endpoint: str = "") -> None:
        """Raise AccessError if nothing answers where machines in a cloud ask for their credentials.

        obstore would ask at this address, which exists only in the cloud, for a minute.
        """
        address = urllib.parse.urlsplit(endpoint or f"http://{_METADATA}")
        try:
            socket.create_connection((address.hostname or _METADATA, address.port or 80), timeout=1).close()
        except OSError:
            raise AccessError("no credentials were found") from None


def time_of(text: str | None) -> datetime | None:
    """Return a time that was written as ISO 8601, or None."""
    try:
        time = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def take_environment() -> dict[str, str]:
    """Return the environment of this process, and take from it what obstore would read differently.

    The tools of the clouds take an empty variable as not set, and a session token only with its key. Endpoints are
    given to obstore where a store is made.
    """
    environment = {name: value for name, value in os.environ.items() if value}
    if "AWS_ACCESS_KEY_ID" not in environment:
        for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_CREDENTIAL_EXPIRATION"):
            environment.pop(name, None)
    for name in [name for name in os.environ if name not in environment or name in _ENDPOINTS]:
        del os.environ[name]
    return environment
