"""``python -m fffs`` runs the ``fffs`` program."""

from fffs.cli.parser import main

if __name__ == "__main__":
    main()
