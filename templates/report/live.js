// A page that is served: it asks for a newer one, and keeps what the reader chose.

const EVERY = 1000 * Number(document.documentElement.dataset.live);
let edition = '"1"';
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; });
addEventListener("pointerup", () => { pressed = false; });

const clock = () => new Date().toLocaleTimeString("en-GB");
const tellLive = (text, ...rest) => $("live-status").replaceChildren(text, ...rest);

// Put the content of a newer page in the place of this one's. Nothing in it is executed.
async function replace(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const wanted = fresh.getElementById("data");
  if (!wanted || !fresh.querySelector("main")) throw Error("that was no report");
  const data = await inflate(wanted.textContent);
  const focus = document.activeElement;
  const caret = focus?.matches("input[type=search]") ? [focus.selectionStart, focus.selectionEnd] : null;
  const opened = new Map([...document.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const scrolled = [...document.querySelectorAll(".wide")].map((each) => [each.scrollLeft, each.scrollTop]);
  const at = [scrollX, scrollY];
  stop();
  for (const part of ["main", "header"]) document.querySelector(part).replaceWith(document.adoptNode(fresh.querySelector(part)));
  for (const each of document.querySelectorAll("details[id]")) if (opened.has(each.id)) each.open = opened.get(each.id);
  stop = start(data);
  document.querySelectorAll(".wide").forEach((each, place) => { [each.scrollLeft, each.scrollTop] = scrolled[place] ?? [0, 0]; });
  scrollTo(...at);
  const again = focus?.id && $(focus.id);
  if (again) {
    again.focus({ preventScroll: true });
    if (caret) again.setSelectionRange(...caret);
  }
}

// After a failure only the reader's click asks again: another program could listen there by then.
async function look() {
  const busy = pressed || document.hidden || document.activeElement?.tagName === "SELECT";
  if (!busy) {
    try {
      const answer = await fetch(location.pathname, { headers: { "If-None-Match": edition }, cache: "no-store", redirect: "error" });
      if (answer.status === 200) {
        edition = answer.headers.get("ETag");
        await replace(await answer.text());
      } else if (answer.status !== 304) throw Error(`it answered ${answer.status}`);
      tellLive(`live, looked at ${clock()}`);
    } catch {
      const again = make("button", { type: "button", textContent: "Look again", onclick: look });
      tellLive(`Not live since ${clock()}: hpcrun report --serve has ended, or the ssh tunnel has. `, again);
      return;
    }
  }
  setTimeout(look, EVERY);
}
setTimeout(look, EVERY);
