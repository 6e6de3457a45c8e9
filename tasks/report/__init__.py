"""The report of a lifecycle: outputs and improvements of each step, as one page of HTML.

    store ─gather─▶ Lifecycle ─render─▶ HTML

`lifecycle` reads the store into plain frozen data, `plots` draws, `page` renders. Nothing here
imports torch, MLflow or Prefect, so a report can be made on any machine that can read the store.
"""
