"""``python -m capturelint``: the command line without an installed script."""

from capturelint.cli import main

if __name__ == "__main__":
    main()
