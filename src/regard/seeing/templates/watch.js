"use strict";
// Follows a run: asks the server for what has changed, and puts its report into the page.

/** All words of this page. */
const WORDS = {
  reading: "Reading the run …",
  none: "No evaluation yet: the curves appear after the first one.",
  step: (step, epoch) => `Step ${step}, epoch ${epoch}`,
  metric: (name, value) => `${name} ${value}`,
  finished: "finished",
  ago: (time) => `last evaluation ${time} ago`,
  seconds: (n) => `${n} s`,
  minutes: (n) => `${n} min`,
  hours: (n) => `${n} h`,
  gone: "The server does not answer: start `regard watch` again. This page keeps asking.",
};

/** Milliseconds between questions: while a run trains, once it has finished, after an error. */
const WAIT = { training: 2000, finished: 30000, wrong: 5000 };

const status = document.getElementById("status");
const age = document.getElementById("age");
const report = document.getElementById("report");
let version = "";
let state = null;

/** A time in the largest unit that it has several of. */
function duration(seconds) {
  if (seconds < 120) return WORDS.seconds(Math.round(seconds));
  if (seconds < 7200) return WORDS.minutes(Math.round(seconds / 60));
  return WORDS.hours(Math.round(seconds / 3600));
}

/** The status in words. */
function describe() {
  if (state.step === null) return WORDS.none;
  const parts = [WORDS.step(state.step, state.epoch)];
  if (state.score !== null) parts.push(WORDS.metric(state.metric, state.score));
  if (state.finished) parts.push(WORDS.finished);
  if (state.note) parts.push(state.note);
  return parts.join(" · ");
}

/** Set the status, which is announced only if it says something new. */
function say(text, wrong = false) {
  if (status.textContent !== text) status.textContent = text;
  status.parentElement.classList.toggle("wrong", wrong);
  const running = !wrong && state !== null && state.step !== null && !state.finished;
  age.textContent = running ? WORDS.ago(duration(state.age)) : "";
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
