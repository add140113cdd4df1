"""What is special about the connections of SFTP and FTP in fsspec: silence, late answers, and closing them."""

from __future__ import annotations

import contextlib
import ftplib
from typing import Any, Final

from fffs.errors import FffsError

PATIENCE: Final = 60.0  # seconds for which a server of SFTP may be silent


def limit_silence(fs: Any) -> None:
    """Have a file system of SFTP raise TimeoutError when its server is silent; by default, it waits for ever."""
    with contextlib.suppress(AttributeError):
        fs.ftp.get_channel().settimeout(PATIENCE)


def ping(fs: Any, is_new: bool = False) -> bool:
    """Ask a server for something that exists. Returns False for other protocols. Raises what a lost connection does.

    is_new: nothing was asked before, so that no answer to that can come.
    """
    ftp: Any = getattr(fs, "ftp", None)
    if hasattr(ftp, "sendcmd"):  # FTP
        if is_new:
            ftp.sendcmd("NOOP")
        else:
            _require_own_answer(ftp)
    elif hasattr(ftp, "normalize"):  # SFTP
        ftp.normalize(".")
    else:
        return False
    return True


def require_missing(fs: Any, path: str) -> None:
    """Raise an error unless there is no such file, of which a file system of SFTP or FTP raised FileNotFoundError.

    That of FTP raises it for any answer to a listing, also for one that refuses it for a moment, and after an idle
    connection was ended.
    """
    ftp: Any = getattr(fs, "ftp", None)
    if not hasattr(ftp, "sendcmd"):
        return
    try:
        ftp.sendcmd("TYPE I")  # some servers have sizes of no other
        answer = ftp.sendcmd(f"SIZE {path}")
    except (ftplib.error_perm, ftplib.error_temp) as error:
        if not str(error).startswith("550"):  # it has no such command, for example
            _require_unlisted(ftp, path)
        return
    if not answer.startswith("213"):  # to another question
        raise ftplib.error_reply(answer)
    raise OSError("its server has it, but did not list it")  # so that it is asked for again, over another connection


def _require_unlisted(ftp: Any, path: str) -> None:
    folder, _, name = path.rpartition("/")
    names: list[str] = []
    try:
        ftp.retrlines(f"NLST {folder or '/'}", names.append)
    except ftplib.error_perm:  # there is no such folder, or nothing is in it
        return
    if name in (found.rpartition("/")[2] for found in names):
        raise OSError("its server has it, but did not list it")


def may_answer_late(fs: Any, error: BaseException) -> bool:
    """Return whether the answer to a question that failed may still come, and be taken for that to another one.

    SFTP numbers its questions, but after a silence, others must not wait as long. FTP has an answer for each question
    in turn; what is neither an answer nor made of one may have come between the two.
    """
    if isinstance(error, TimeoutError) or not isinstance(error, Exception):
        return True
    answers = (ftplib.error_temp, ftplib.error_perm, FileNotFoundError, FffsError)
    return hasattr(getattr(fs, "ftp", None), "sendcmd") and not isinstance(error, answers)


def _require_own_answer(ftp: Any) -> None:
    """Ask a server of FTP for something that only this question has as its answer. Raises what is raised otherwise."""
    try:
        answer = ftp.sendcmd("PWD")
    except ftplib.error_perm:  # it does not tell
        return
    if not answer.startswith("257"):
        raise ftplib.error_reply(answer)


def close(fs: Any) -> None:
    """Close the connection of SFTP or FTP: a thread of the former would keep it."""
    for name in ("client", "ftp"):
        with contextlib.suppress(Exception):
            getattr(fs, name).close()
