"""The report: all about runs in one HTML file (``hpcrun report``).

In reading order: `report` collects the content from the files of the runs, and cuts their logs to
what a page has room for; `curves` thins their metrics; `svg` draws what print and pages without
JavaScript show; `comparison` puts experiments side by side; `search_charts` draws searches; `page`
renders templates/report, with what the scripts draw and filter by, and links to trackers;
`all_experiments` is the page of all; `pdf` prints a page; `live_server` serves it to its reader
alone; `report_command` is the command.

Of templates/report: `filter.js` is the language of ``--where``, `colors.js` what a colour means,
`axes.js` what an axis shows, `charts.js`, `relations.js` and `importance.js` draw, `report.js` puts
the page together, `live.js` renews it.

To add a column of the table of runs: `hpcrun.observe.results` has those of ``hpcrun results``;
``page._OWN_COLUMNS`` those of the report alone. To add a section: a field of `report.Report`, a
value in `page.render`, and its markup in templates/report/report.html.j2. To add a quantity of
telemetry: ``SERIES`` of `hpcrun.observe.read.node_usage`.
"""

from hpcrun.command import LOOK, Command

COMMANDS = (
    Command(
        "report",
        LOOK,
        "All about runs in one HTML file that opens offline.",
        "hpcrun.tools.report.report_command:command",
        after="diff",
        examples={
            "hpcrun report finetune -o finetune.html": "to look at, or to send",
            "hpcrun report '*'": "hours, money and causes of failure of all experiments",
        },
    ),
)
