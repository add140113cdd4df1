"""What ~/.aws says: the keys, region and endpoint of a profile, as the tools of AWS take them."""

from __future__ import annotations

import configparser
import contextlib
import os
from collections.abc import Mapping
from typing import Final

from fffs.errors import UsageError

_certificates: tuple[object, str | None] | None = None  # what was asked for last, and the answer

# Profiles with one of these get their keys from a program, a browser or another service.
INDIRECT: Final = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")


def profile_files(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the paths of the file of credentials and of the file of settings."""
    home = environment.get("HOME") or os.path.expanduser("~")
    names = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
    credentials, config = (
        os.path.expanduser(environment.get(name) or os.path.join(home, ".aws", file)) for name, file in names
    )
    return credentials, config


def profile_name(environment: Mapping[str, str]) -> str:
    """Return the name of the profile in use."""
    return environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"


def read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the profile in use; none if there is no default profile.

    Raises:
        UsageError: a file cannot be read, or the environment names a profile that does not exist.

    """
    profile = profile_name(environment)
    credentials, config = profile_files(environment)
    sections: tuple[str, ...] = (f"profile {profile}", f'profile "{profile}"')
    sections = ("default", *sections) if profile == "default" else sections
    found = [_read_section(config, sections), _read_section(credentials, (profile,))]  # later ones win, as in boto3
    if found == [None, None] and profile != "default":
        raise UsageError(f"AWS_PROFILE: {credentials} and {config} have no profile {profile!r}")
    merged = {key: value for section in found if section for key, value in section.items()}
    if found[1] and "aws_access_key_id" in found[1] and "aws_session_token" not in found[1]:
        merged.pop("aws_session_token", None)  # that of other keys
    return merged


def profile_stamps(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return what changes when the files of profiles do."""
    return tuple(stamp(path) for path in profile_files(environment))


def stamp(path: str) -> object:
    """Return what changes when a file does, or None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def certificates_file(environment: Mapping[str, str]) -> str | None:
    """Return the file of certificates that the environment or the profile in use names, or None.

    Each object that is opened asks for it, and files of hundreds of profiles are usual.
    """
    global _certificates
    if named := environment.get("AWS_CA_BUNDLE"):
        return named
    asked = (profile_files(environment), profile_name(environment), profile_stamps(environment))
    known = _certificates
    if known is None or known[0] != asked:
        found = None
        with contextlib.suppress(UsageError):  # a store of S3 tells of a wrong profile where it is made
            found = read_profile(environment).get("ca_bundle")
        known = _certificates = (asked, found)
    return known[1]


def is_indirect(settings: Mapping[str, str]) -> bool:
    """Whether a profile has no keys of its own, and something else has to be asked for them."""
    return "aws_access_key_id" not in settings and any(name in settings for name in INDIRECT)


def _read_section(path: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return a section of a file, by the first of its names that is there. None without one or without the file."""
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # keys may come from elsewhere
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        # The message of a parser would show the line, which may hold a key.
        raise UsageError(f"{path}: cannot read this file of settings ({type(error).__name__})") from None
    for name in names:
        if parser.has_section(name):
            return {key: value.strip() for key, value in parser.items(name) if value}
    return None
