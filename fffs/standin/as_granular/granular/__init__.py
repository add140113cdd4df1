"""``import granular`` finds this module in processes that were spawned after ``install_as_granular``."""

from fffs.compat import install_as_granular

install_as_granular()  # replaces this module in sys.modules
