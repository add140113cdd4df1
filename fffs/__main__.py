"""``python -m fffs`` is the ``fffs`` program."""

from fffs.cli.parser import main

if __name__ == "__main__":
    main()
