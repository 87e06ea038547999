"""The application: state of runs, live, with keys that show and act."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from hpcrun.errors import EXIT_INTERRUPTED, EXIT_OK, HpcrunError, UsageError
from hpcrun.observe.status.status_table import Trends, sparkline
from hpcrun.slurm.background import BackgroundCall
from hpcrun.text import age, one_line
from hpcrun.tools.top import views
from hpcrun.tools.top.pages import CommandPage, Page, Question
from hpcrun.tools.top.row_list import RowList
from hpcrun.tools.top.top_model import TopModel
from hpcrun.tools.top.views import NODES, QUEUE, RUNS, Look, Picture, node_samples, take

# Seconds between two looks, or a multiple of the processor time of one, so that thousands of runs
# take a twentieth of a core.
INTERVAL, PAUSES = 2.0, 19.0
# Seconds after which a look that has no answer is reported.
LONG = 2.0
_TICK = 0.2
# Lines of a terminal from which on the end of a log has room, and lines around rows and log.
_HIGH, _AROUND = 36, 6
_KEYS = "? help  / filter  Enter logs  w why  s show  c cancel  r requeue  q quit"
_NAMES = (RUNS, QUEUE, NODES)

HELP = """\
Move       arrows or j k, PgUp PgDn, Home End or g G
Enter, l   logs of the run, followed      w   why its attempts ended
s          the run: facts                 S   its configuration
c          cancel                         r   requeue (both ask first, and name the runs)
Space      mark a run: c, r, w and Enter then take all that are marked; u unmarks all
/          filter, applied as you type, in the language of --where; Enter keeps it,
           Escape removes it
1 2 3      runs, queue (what waits and why), nodes (who is there, and how busy)
< > -      sort by the column to the left or right; the other way round
t          the last lines of the run's log, below the rows of a high terminal, or not
F5         look now                       q, Ctrl-C   leave; the runs go on

The curve (TREND) is the metric beside it: the spec's objective, else the loss. Rows say
with words what colours say. What is shown is as old as the first line says: thousands of
runs are looked at every few seconds, and while Slurm or the storage is silent the last
answer stays, with its age.
"""


class TopApp(App[BaseException]):
    """The screen. Returns the exception that ended it, if one did."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, Static, RowList, Input { background: ansi_default; color: ansi_default; }
    #head, #counts, #keys { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #head { text-style: bold; }
    #problem { height: auto; max-height: 3; color: ansi_yellow; display: none; }
    RowList { height: 1fr; }
    #detail { height: 2; }
    #log { display: none; border-top: solid ansi_default; text-wrap: nowrap; }
    #filter { height: 1; display: none; }
    #keys { text-style: dim; }
    """
    # Taken before any widget sees them, so that keys that come in one burst act in their order.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, action, show=False, priority=True)
        for keys, action in (
            ("ctrl+c", "interrupt"),
            ("q", "leave"),
            ("up,k", "move(-1)"),
            ("down,j", "move(1)"),
            ("pageup,ctrl+b", "page(-1)"),
            ("pagedown,ctrl+f", "page(1)"),
            ("home,g", "to(0)"),
            ("end,G", "to(-1)"),
            ("question_mark", "help"),
            ("slash", "filter"),
            ("escape", "unfilter"),
            ("enter,l", "logs"),
            ("w", "why"),
            ("s", "facts"),
            ("S", "facts('--config')"),
            ("c", "act('cancel')"),
            ("r", "act('requeue')"),
            ("space", "mark"),
            ("u", "unmark"),
            *((str(number), f"view('{name}')") for number, name in enumerate(_NAMES, 1)),
            ("less_than_sign,comma", "sort(-1)"),
            ("greater_than_sign,full_stop", "sort(1)"),
            ("minus", "reverse"),
            ("t", "log_end"),
            ("f5", "now"),
        )
    ]
    AUTO_FOCUS = None

    def __init__(self, look: Look) -> None:
        super().__init__(ansi_color=True)
        self.exit_code = EXIT_OK
        """The exit code of the command."""
        self.model = TopModel()
        self._look = look
        self._looking: BackgroundCall[Picture] | None = None
        self._due = 0.0
        # Why there is no newer picture, and what the last key came to.
        self._failure, self._notice = "", ""
        # What is read beside the looks, for the rows on the screen.
        self._beside: BackgroundCall[None] | None = None
        self._beside_of: object = None
        self._reader = Trends()
        self._trends: dict[str, list[float]] = {}
        # The end of the log of the run under the cursor, and what it is of.
        self._has_log = True
        self._end: BackgroundCall[list[str]] | None = None
        self._end_of: object = None
        self._end_lines: list[str] = []
        # What stands around the rows, by the id of its widget.
        self._words: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="counts")
        yield Static(id="problem")
        yield RowList()
        yield Static(id="log")
        yield Static(id="detail")
        yield Input(
            id="filter", compact=True, placeholder="lr>=3e-4 and state=failed, as for --where"
        )
        yield Static(Text(_KEYS), id="keys")

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Not in a thread that is not the main one, as in a test.
            with contextlib.suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, self.action_interrupt)
        self.set_interval(_TICK, self._tick)
        self._tick()

    @property
    def _list(self) -> RowList:
        return self.screen_stack[0].query_one(RowList)

    @property
    def _is_leaving(self) -> bool:
        """Return whether Textual takes the screen down; it lets timers act meanwhile."""
        return not self.screen_stack or not self.screen_stack[0].query(RowList)

    @property
    def _is_typing(self) -> bool:
        return bool(self.screen_stack[0].query_one("#filter", Input).display)

    # Looks, in threads.

    def _tick(self) -> None:
        """Take what the threads have found, and start the next look when it is time."""
        if self._is_leaving:
            return
        if self._looking is not None and self._looking.wait(0):
            self._take(self._looking)
            self._looking = None
        if self._looking is None and time.monotonic() >= self._due:
            self._looking = BackgroundCall(partial(take, self._look))
        if self._beside is not None and self._beside.wait(0):
            self._beside = None
            self._renew()
        self._read_beside()
        self._read_log()
        self._draw_words()

    def _take(self, looking: BackgroundCall[Picture]) -> None:
        self._due = time.monotonic() + max(INTERVAL, PAUSES * looking.processor)
        try:
            picture = looking.result()
        except (HpcrunError, OSError) as error:
            message = error.message if isinstance(error, HpcrunError) else str(error)
            self._failure = one_line(message)
        except Exception as error:
            self.exit(error)
        else:
            self._failure = ""
            self.model.take(picture, is_typed=self._is_typing)
            self._renew()

    def _read_beside(self) -> None:
        """Read the curves or the telemetry of the rows on the screen, once for each look."""
        model, picture = self.model, self.model.picture
        if picture is None or self._beside is not None or model.viewed == QUEUE:
            return
        rows = [row for row in self._list.visible_rows if row < len(model.view.targets)]
        targets = tuple(model.view.targets[row][0] for row in rows)
        wanted = (picture.time, model.viewed, targets)
        if wanted == self._beside_of:
            return
        self._beside_of = wanted
        nodes = [model.view.table.rows[row][0] for row in rows]
        is_nodes = model.viewed == NODES

        def read() -> None:
            with contextlib.suppress(HpcrunError, OSError):
                if is_nodes:
                    model.samples.update(node_samples(picture, nodes))
                else:
                    self._trends.update(views.courses(self._reader, picture, targets))

        self._beside = BackgroundCall(read)

    @property
    def _log_height(self) -> int:
        """The lines of the screen that rows leave to the end of a log; 0 if they are too few.

        Rows take two thirds of a high screen at most.
        """
        height = self.screen_stack[0].size.height
        if not self._has_log or height < _HIGH or self.model.viewed == NODES:
            return 0
        room = height - _AROUND
        left = room - min(len(self.model.view.targets) + 1, 2 * room // 3)
        return left if self.model.view.targets else 0

    def _read_log(self) -> None:
        """Read the end of the log of the run under the cursor, once for each look and move."""
        model, picture, height = self.model, self.model.picture, self._log_height
        if self._end is not None and self._end.wait(0):
            self._end_lines, self._end = self._end.result(), None
        places = model.places(self._list.cursor)
        if picture is None or self._end is not None or not height or not places:
            return
        wanted = (picture.time, places[0], height)
        if wanted != self._end_of:
            self._end_of = wanted
            reading = partial(views.log_end, picture, places[0], height - 1)
            self._end = BackgroundCall(reading)

    # What is drawn.

    def _renew(self) -> None:
        """Show the rows anew; the cursor stays on its run."""
        model, rows = self.model, self._list
        if model.picture is None:
            return
        rows.cursor = model.renew(rows.cursor)
        view, has_trend = model.view, model.viewed == RUNS and model.picture.metric is not None
        rows.show(view.table, view.spare, self._cells, model.marked_rows, has_trend=has_trend)

    def _cells(self, row: int) -> Sequence[str]:
        model = self.model
        cells = list(model.view.table.rows[row])
        if model.viewed == RUNS and views.TREND in model.view.table.headers:
            course = self._trends.get(model.directory(row) or "", ())
            column = list(model.view.table.headers).index(views.TREND)
            cells[column] = sparkline(course, self._list.trend_width)
        return cells

    def _draw(self) -> None:
        self._renew()
        self._draw_words()

    def _draw_words(self) -> None:
        model, rows = self.model, self._list
        names = (f"{number} {name}" for number, name in enumerate(_NAMES, 1))
        shown = (f"[{name}]" if name[2:] == model.viewed else name for name in names)
        head = f"hpcrun top   {'  '.join(shown)}"
        if model.picture is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(model.picture.time))
            head += f"   as of {clock}, {age(time.time() - model.picture.time)} ago"
        self._say("head", head)
        self._say("counts", model.counts(rows.visible_rows))
        self._say("problem", "\n".join(self._problems()))
        self._say("detail", model.detail(rows.cursor))
        height = self._log_height
        log = self.screen_stack[0].query_one("#log", Static)
        log.display, log.styles.height = height > 0, height
        self._say("log", "\n".join(self._end_lines) if height else "")

    def _say(self, place: str, text: str) -> None:
        """Change the words of a widget, where they are others."""
        if self._words.get(place) != text:
            self._words[place] = text
            static = self.screen_stack[0].query_one(f"#{place}", Static)
            static.update(Text(text))
            if place == "problem":
                static.display = bool(text)

    def _problems(self) -> list[str]:
        picture, old = self.model.picture, [self._failure]
        if self._looking is not None and self._looking.took >= LONG:
            old.append(f"no answer of Slurm or the storage for {self._looking.took:.0f} s")
        if any(old) and picture is not None:
            old.insert(0, f"what is shown is {age(time.time() - picture.time)} old")
        told = [one_line(problem) for problem in picture.problems] if picture else []
        return [line for line in (self._notice, self.model.unmet, *old, *told) if line]

    # Keys.

    def check_action(self, action: str, _parameters: tuple[object, ...]) -> bool:
        """Check whether a key acts: not under a page, nor as a letter of the filter."""
        if action == "interrupt":
            return True
        acts = len(self.screen_stack) == 1 and (not self._is_typing or action == "unfilter")
        if acts:
            self._notice = ""
        return acts

    def on_row_list_moved(self) -> None:
        if not self._is_leaving:
            self._draw_words()

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._list.go(self._list.cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by the height of the screen."""
        self._list.go(self._list.cursor + pages * self._list.page)

    def action_to(self, row: int) -> None:
        """Move the cursor to the first (0) or last (-1) row."""
        self._list.go(row if row >= 0 else len(self.model.view.targets) - 1)

    def action_view(self, name: str) -> None:
        """Show another view."""
        self.model.viewed = name
        self._renew()
        self._tick()

    def action_sort(self, columns: int) -> None:
        """Sort by the next column that has values."""
        self.model.sort(columns)
        self._draw()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.model.is_backwards = not self.model.is_backwards
        self._draw()

    def action_log_end(self) -> None:
        """Show the end of the run's log below the rows, or not."""
        self._has_log = not self._has_log
        self._draw()

    def action_now(self) -> None:
        """Look as soon as the last look is done."""
        self._due = 0.0

    def action_mark(self) -> None:
        """Mark the runs of the cursor's row, or take the marks away, and go on to the next."""
        self.model.mark(self._list.cursor)
        self._renew()
        self.action_move(1)

    def action_unmark(self) -> None:
        """Take all marks away."""
        self.model.marked = set()
        self._draw()

    def action_filter(self) -> None:
        """Show the line in which a filter is typed."""
        field = self.query_one("#filter", Input)
        field.display = True
        self.screen.set_focus(field)

    def action_unfilter(self) -> None:
        """Show all runs again."""
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.model.condition = event.value.strip()
        self.model.select(is_typed=True)
        self._draw()

    def on_input_submitted(self) -> None:
        if not self.model.unmet:
            self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.screen.set_focus(None)

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(Page("hpcrun top: keys", HELP))

    def action_logs(self) -> None:
        """Follow the logs of the chosen runs."""
        with self._telling_why():
            chosen = self.model.chosen(self._list.cursor)
            arguments = self.model.command("logs", chosen, "-f", "--tail", "500")
            self.push_screen(CommandPage(arguments, follows=True))

    def action_why(self) -> None:
        """Show what ended the attempts of the chosen runs."""
        with self._telling_why():
            chosen = self.model.chosen(self._list.cursor)
            self.push_screen(CommandPage(self.model.command("why", chosen)))

    def action_facts(self, *options: str) -> None:
        """Show one run."""
        with self._telling_why():
            places = self.model.places(self._list.cursor)[:1]
            self.push_screen(CommandPage(self.model.command("show", places, *options)))

    def action_act(self, verb: str) -> None:
        """Ask, then cancel or requeue the chosen runs."""
        with self._telling_why():
            places = self.model.acts_on(verb, self.model.chosen(self._list.cursor))
            arguments = self.model.command(verb, places, "--yes")
            question = self.model.question(verb, places)
            self.push_screen(Question(question), partial(self._act, arguments))

    def _act(self, arguments: Sequence[str], answer: bool | None) -> None:
        if answer:
            page = CommandPage(arguments, acts=True)
            self.push_screen(page, lambda _: self.action_now())

    @contextlib.contextmanager
    def _telling_why(self) -> Iterator[None]:
        """Show why a key does nothing."""
        try:
            yield
        except UsageError as error:
            self._notice = one_line(error.message)
            self._draw_words()

    def action_interrupt(self) -> None:
        """Leave, unless a command is at work on runs."""
        if isinstance(self.screen, CommandPage) and self.screen.is_acting:
            self.screen.action_back()
            return
        self.exit_code = EXIT_INTERRUPTED
        self.action_leave()

    def action_leave(self) -> None:
        """Leave the screen; the runs go on."""
        for screen in self.screen_stack:
            if isinstance(screen, CommandPage):
                screen.close()
        self.exit()
