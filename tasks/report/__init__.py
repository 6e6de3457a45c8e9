"""The lifecycle's report: what each step made and whether it helped, as one page of HTML.

    store ─gather─▶ Lifecycle ─render─▶ HTML

`lifecycle` reads the store into plain frozen data, `plots` draws, `page` renders. Nothing here
imports torch, MLflow or Prefect, so a report can be made wherever the store can be read.
"""
