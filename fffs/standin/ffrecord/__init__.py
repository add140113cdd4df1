"""What ``import ffrecord`` finds in processes that were spawned by one where fffs stands in for it."""

from fffs.compat import install_as_ffrecord

install_as_ffrecord()  # puts another module in this one's place
