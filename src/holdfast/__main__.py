"""``python -m holdfast``: the command line without an installed script."""

from holdfast.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
