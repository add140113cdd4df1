"""``python -m fffs`` runs the ``fffs`` program."""

from fffs.cli.program import main

if __name__ == "__main__":
    main()
