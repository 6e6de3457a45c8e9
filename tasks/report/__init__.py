"""The report of a lifecycle: outputs and improvements of each step, as one page of HTML.

    store ─gather─▶ Lifecycle ─render─▶ HTML

`lifecycle` reads the store into plain frozen data, `plots` and `round_plots` draw the figures,
`page` renders the page, and `index_page` the list of all reports. Nothing here imports torch,
MLflow or Prefect, so any machine that can read the store can make a report.
"""
