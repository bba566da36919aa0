"""The command `specrs`: results on stdout, everything else on stderr.

`app` holds the commands, `options` reads what the user gave, `display` writes what was found.
"""

from .app import main as main
