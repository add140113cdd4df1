"""``python -m fffs`` is the ``fffs`` program."""

from fffs.cli import main

if __name__ == "__main__":
    main()
