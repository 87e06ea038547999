"""Diagnosis: why runs ended as they did, and where their time went.

In reading order: `attempts` reads the ledger, session and metrics of each attempt into a story, and
how it spent its time; `narrative` puts it into sentences, a loader that is too slow among them, and
`advice` adds the next step (``hpcrun why``), by what is known of troubles where a node, a site or a
job was at fault, and `left_behind` where it lacked a variable or a file of where it was submitted;
`goodput` divides a run's time into spans and `cost` turns them into GPU-hours, and by the
`price_list` of the profile into money (``hpcrun status --cost``); `unread_progress` finds steps and
metrics in what a program prints that nothing reads, and what a spec names and the run never showed.
`goodput`, `cost` and `price_list` are pure.

To add advice on a kind of cause: `advice._TEXTS` for a fixed text, `advice._KINDS` for one that
depends on the run. To add a kind of time: a field of `goodput.Goodput` with its name in
`goodput.WORDS`, and a colour in templates/report/report.css.
"""
