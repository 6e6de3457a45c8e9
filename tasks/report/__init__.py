"""The lifecycle's report: what each step made and whether it helped, as one page of HTML.

    store ─gather─▶ Story ─render─▶ HTML

`story` reads the store into plain frozen data, `plots` draws, `page` renders. Nothing here imports
torch, MLflow or Prefect, so a report can be made again wherever the store can be read.
"""
