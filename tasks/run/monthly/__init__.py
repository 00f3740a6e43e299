"""Months of a recipe that runs by itself: one version from the crawl to the champion, and its report.

`config` has the settings and the names of versions, `cycle` runs one month in this process, `figures` counts what it
brought, `drift` compares it with the months before, `regret` scores the models of all months, `report` writes it down.
"""
