"""`python -m specrs` is the command `specrs`."""

from .cli import main

main()
