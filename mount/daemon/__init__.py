"""The process that serves a mount, from its start to its end."""
