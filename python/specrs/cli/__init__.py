"""The command `specrs`: results on stdout, everything else on stderr.

`app` lists the commands, which stand in a file for each group; `options` reads what the user gave,
`display` writes what was found.
"""

from .app import main as main
