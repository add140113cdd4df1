"""One module per command of the command line, each with ``run(args) -> exit code``."""
