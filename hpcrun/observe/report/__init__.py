"""The report: all about runs in one HTML file (``hpcrun report``).

In reading order: `report` collects the content from the files of the runs; `curves` thins their
metrics and `node_usage` averages their telemetry to what a page has room for; `svg` draws what
print and pages without JavaScript show; `page` renders templates/report, where the scripts draw the
interactive charts from the same data.

To add a section: a field of `report.Report`, a value in `page.render`, and its markup in
templates/report/report.html.j2. To add a quantity of telemetry: `node_usage.SERIES`.
"""
