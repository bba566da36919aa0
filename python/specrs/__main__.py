"""`python -m specrs` is the command `specrs`."""

from .cli.app import main

main()
