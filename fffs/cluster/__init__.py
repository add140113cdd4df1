"""Work that is divided into tasks, which run in any process on any machine."""
