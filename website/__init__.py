"""What the site has beside `docs/`: the front page, the reference, and the linked files.

`make docs` builds the site with MkDocs and `mkdocs.yml`. Only `website.hooks` imports MkDocs, so
the tests check the other modules without it.
"""
