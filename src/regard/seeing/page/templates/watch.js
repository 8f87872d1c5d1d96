"use strict";
// Follows a run: asks the server for what has changed, and puts its report into the page.

/** All texts of this page, by the last part of their key. */
const WORDS = JSON.parse(document.getElementById("words").textContent);

/** A text with its placeholders filled. */
function fill(name, values) {
  return WORDS[name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

/** Milliseconds between questions: while a run trains, once it has finished, after an error. */
const WAIT = { training: 2000, finished: 30000, wrong: 5000 };

const status = document.getElementById("status");
const age = document.getElementById("age");
const report = document.getElementById("report");
let version = "";
let state = null;

/** A time in the largest unit that it has several of. */
function duration(seconds) {
  if (seconds < 120) return fill("seconds", { count: Math.round(seconds) });
  if (seconds < 7200) return fill("minutes", { count: Math.round(seconds / 60) });
  return fill("hours", { count: Math.round(seconds / 3600) });
}

/** The status in words. */
function describe() {
  if (state.step === null) return WORDS.none;
  const parts = [fill("step", state)];
  if (state.score !== null) parts.push(`${state.metric} ${state.score}`);
  if (state.finished) parts.push(WORDS.finished);
  if (state.note) parts.push(state.note);
  return parts.join(" · ");
}

/** Set the status, which is announced only if it says something new. */
function say(text, wrong = false) {
  if (status.textContent !== text) status.textContent = text;
  status.parentElement.classList.toggle("wrong", wrong);
  const running = !wrong && state !== null && state.step !== null && !state.finished;
  age.textContent = running ? fill("ago", { time: duration(state.age) }) : "";
}

/** Put the new report in place, and keep what a reader has scrolled to and focused. */
function replaceReport(html) {
  const before = report.querySelector(".scroll");
  const place = before && [before.scrollLeft, before.scrollTop];
  const focused = before !== null && document.activeElement === before;
  report.innerHTML = html;
  const after = report.querySelector(".scroll");
  if (place && after) [after.scrollLeft, after.scrollTop] = place;
  if (focused && after) after.focus({ preventScroll: true });
  report.setAttribute("aria-busy", "false");
}

async function ask() {
  let answer;
  try {
    const response = await fetch(`api/progress?since=${encodeURIComponent(version)}`);
    answer = await response.json();
  } catch {
    say(WORDS.gone, true);
    return WAIT.wrong;
  }
  if (answer.error) {
    say(`${answer.error.message}: ${answer.error.hint}.`, true);
    version = "";
    return WAIT.wrong;
  }
  state = answer.state;
  if (answer.html !== null) replaceReport(answer.html);
  version = answer.version;
  say(describe());
  return state.finished ? WAIT.finished : WAIT.training;
}

async function follow() {
  const wait = await ask();
  setTimeout(follow, wait);
}

say(WORDS.reading);
follow();
