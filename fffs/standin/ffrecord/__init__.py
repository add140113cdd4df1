"""``import ffrecord`` finds this module in processes that were spawned after ``install_as_ffrecord``."""

from fffs.compat import install_as_ffrecord

install_as_ffrecord()  # replaces this module in sys.modules
